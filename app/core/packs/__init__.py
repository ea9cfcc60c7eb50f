"""Evidence packs: built by a durable job, kept as long as their bundle, given out and audited."""
