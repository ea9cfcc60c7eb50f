"""The audit chain and the transparency log over HTTP."""
