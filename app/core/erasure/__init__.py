"""Jobs between PostgreSQL and the object store: `erasing`, `moving`, `archiving`."""
