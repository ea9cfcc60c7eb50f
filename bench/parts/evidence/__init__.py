"""What others verify, from bytes to services.

`canonical` JSON, the `ledger` as a tree, the `log` that publishes it, and the `audit` chain that it
anchors.
"""
