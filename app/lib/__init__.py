"""Leaf helpers: each does one thing with bytes or sockets, and none imports anything of ours."""
