"""Words in search indexes: the `tokenizer`, and the `search_keys` of records' words."""
