"""`python -m app.manage doctor`: `command` runs the checks side by side, and prints what they find.

A check takes a `context` and yields parts. Those of `stores`, `production` and `outside` look
closer than the probes of `/readyz`, which are checks too. Nothing is changed, and nothing secret
printed.
"""
