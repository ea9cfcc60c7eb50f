"""The tests; what several of them share stands beside this file."""
