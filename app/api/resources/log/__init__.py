"""The transparency log over HTTP: `log`, `log_proofs` for a record, and their `log_schemas`."""
