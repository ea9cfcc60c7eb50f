"""Verification of audit chains: alerts, jobs, the daily run, and what it costs."""
