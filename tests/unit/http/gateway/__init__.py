"""The gateway between ASGI and WSGI; `exchange` sends requests through one."""
