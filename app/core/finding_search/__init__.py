"""Search of findings by their words: `indexing` in the background, `search` of index and tail."""
