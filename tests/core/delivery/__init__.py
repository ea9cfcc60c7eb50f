"""Findings become rows, rows are claimed and finished."""
