"""`python -m app.manage doctor`: `command` has `running` run the `checks`, and prints the `report`.

A check takes a `context` and returns `findings`. Nothing is changed, and nothing secret printed.
"""
