"""A WSGI application behind ASGI: the event loop talks to clients, threads run the application.

Slow senders and readers hold no thread. `gateway` reads `requests`, has `threads` call the
application, and sends its `answers`; `connections` bounds those that only wait.
"""
