"""The audit chain over HTTP: `audit` (pages, verification), `audit_exports`, `anchors`.

`verification_schemas` describes what a verification takes and answers.
"""
