"""The commands, a module for each noun.

`base` is what all share. `general` (whoami, search, tail, completion), `doctor`, `sessions` (with
agents), `records`,
`findings` (with rules), `exports`, `audit`, `keys`, `sharing`, `settings`, `webhooks` with
`listening`, `deliveries`, `jobs`.
"""
