"""The front door over HTTP."""
