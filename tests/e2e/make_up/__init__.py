"""`make up` as a developer runs it; `dev_stack` starts, watches and stops it."""
