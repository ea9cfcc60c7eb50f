"""Words: the `tokenizer`, the `word_index` of each source, the `search_keys` of records' words."""
