"""`make bench`: what the service does in a second, beside what bounds it on the same machine."""
