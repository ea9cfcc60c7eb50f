"""What rules promise while workers die, transactions commit late and rules change.

`turns` is the program of the workers that die.
"""
