"""Pure mathematics of what cannot be changed unseen: no clock, no database, no network."""
