"""How much the processes take in, and what they cost.

`idle` asks nothing of them, `accept` as much as they take; `starvation` is others taking more than
their share, `preset` a small database and little memory.
"""
