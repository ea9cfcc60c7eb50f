"""Jobs between PostgreSQL and the object store: `erasing`, `sweeping`, `moving`, `archiving`."""
