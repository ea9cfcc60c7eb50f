"""The timestamp authority that stamps the log's checkpoints."""
