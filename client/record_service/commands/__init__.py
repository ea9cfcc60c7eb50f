"""The commands, a module for each noun.

`base` is what all share. `general` (whoami, search), `sessions` (with agents), `records`,
`findings` (with rules), `exports`, `audit`, `keys`, `sharing`, `settings`, `webhooks` with
`listening`, `deliveries`, `jobs`, `completion`.
"""
