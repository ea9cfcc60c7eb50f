"""Words as a tenant's search index keeps them: `tokenizer`, `search_keys`, `facets`."""
