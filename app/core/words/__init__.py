"""Words: the `tokenizer`, and the `word_index` of each source."""
