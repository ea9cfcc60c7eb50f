"""`make test-ha`: the service on servers that have a second; each part is killed under load."""
