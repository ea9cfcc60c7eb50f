"""Search of findings by words: `indexing` in the background, `search` in index and new findings."""
