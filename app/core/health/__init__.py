"""Health of the service, for operators.

Behind `/readyz`: `schema`, `readiness`, `write_proof`. For `/metrics`: `gauges`, `lane_figures`
and `log_figures` from the database, and each process's own report, `process_report`.
"""
