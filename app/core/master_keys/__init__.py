"""Master keys: which columns are sealed, under which keys, and how keys are rotated.

`sealed_columns` lists columns; `key_registry` knows the keys in use; `resealing` seals anew;
`status` reports.
"""
