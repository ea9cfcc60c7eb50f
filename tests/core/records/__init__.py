"""Records as they are stored: many requests in one call of the database."""
