"""The quorum without which no checkpoint is published; `gated` is a log behind it."""
