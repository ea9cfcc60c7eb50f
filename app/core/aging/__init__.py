"""What time does: `finding_expiry` deletes old findings, `idle_sessions` ends idle sessions."""
