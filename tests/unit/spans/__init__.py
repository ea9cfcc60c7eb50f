"""Spans of OpenTelemetry: reading them, and mapping them to records and findings."""
