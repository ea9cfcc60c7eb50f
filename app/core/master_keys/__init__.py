"""What lies sealed in the database: where, under which master keys, and how it is sealed anew."""
