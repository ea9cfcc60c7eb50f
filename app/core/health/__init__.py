"""What operators watch.

Behind `/readyz`: `schema`, `readiness`. For `/metrics`: `gauges`, `lane_figures` and `log_figures`
from the database, and what each process says of itself, `process_report`.
"""
