"""Lists: of deliveries and records, their names and periods, saved views and files."""
