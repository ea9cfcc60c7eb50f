"""The tests' databases, and what lies in them.

`databases` copies a migrated one; `leftovers` clears up after a test. `storing` looks at what a
tenant has stored, `plans` at how a statement was answered; `doctoring` has one to be broken.
"""
