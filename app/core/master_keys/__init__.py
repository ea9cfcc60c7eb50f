"""Master keys: which columns are sealed, under which keys, and how keys are rotated.

`sealed_columns` lists columns; `key_heartbeat` records each process's active key in `key_registry`;
`resealing` rotates; `status` reports.
"""
