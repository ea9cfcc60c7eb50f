"""record-service: signed, provable records of what AI agents did for people."""
