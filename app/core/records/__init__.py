"""Records: what an agent did, signed, searchable, and kept for as long as its tenant says."""
