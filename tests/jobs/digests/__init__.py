"""Daily and weekly digests by mail."""
