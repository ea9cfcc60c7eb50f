"""The audit chain and the transparency log over HTTP.

`chains` reads and exports chains; `log_service` is a service with a log of its own.
"""
