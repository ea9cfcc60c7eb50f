"""The API over HTTP, in one process."""
