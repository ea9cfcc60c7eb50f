"""The service on one machine: embedded stores, and the runner behind `make up`.

Nothing here is imported by the product. It is for Linux, where a process can be tied to the life of
the one that started it.
"""
