"""From an event to its outcome: what is due on which lane, who sends it, and what became of it."""
