"""Rules: conditions in CEL over records, steps and sessions, which make findings.

`rules` and `rule_schemas` change and show them, `library` has ready ones. `judging` takes turns at
a tenant's work, reads `subjects`, and commits `matches`; `scanning` looks at the past. `evaluators`
runs the process `child`, which alone loads CEL (`compiling`); both speak `language`.
"""
