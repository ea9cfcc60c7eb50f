"""The clock, and the only code that imports rq-scheduler."""
