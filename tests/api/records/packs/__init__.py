"""Evidence packs over HTTP."""
