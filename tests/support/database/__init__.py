"""The tests' databases, and what lies in them.

`databases` copies a migrated one, and `copies` a whole server; `leftovers` clears up after a test.
`storing` looks at what a tenant has stored, `plans` at the plan of a statement; `doctoring` has a
database for the doctor to find broken.
"""
