"""`Recorder` against the service on a socket: `agent` is a process of its own, `between` a proxy.

`claude` stands for the program that Claude's SDK talks to.
"""
