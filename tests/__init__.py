"""The tests; what several of them share is in `support`."""
