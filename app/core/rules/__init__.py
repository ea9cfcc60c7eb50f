"""Rules: conditions in CEL over records, steps and sessions, which make findings.

`child` is the process that evaluates, `evaluators` starts and ends it; `judging` takes turns at a
tenant's work, `matches` commits what came of it.
"""
