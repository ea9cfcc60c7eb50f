"""A WSGI application behind ASGI: the event loop talks to clients, threads run the application.

Slow senders and readers hold no thread. `gateway` reads `bodies`, has `threads` call the
application with an `environ`, and sends its `answers`; `client` tells who left, `connections`
bounds those that only wait.
"""
