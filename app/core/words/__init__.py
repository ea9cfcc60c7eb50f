"""Words in a tenant's search index: `tokenizer`, `search_keys`, `facets`."""
