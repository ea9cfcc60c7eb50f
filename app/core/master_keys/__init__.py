"""Master keys: where sealed bytes lie, under which keys, and how they are sealed anew.

`sealed_columns` lists columns; `key_heartbeat` writes to the `key_registry` which key each process
has in front; `resealing` rotates; `status` reports.
"""
