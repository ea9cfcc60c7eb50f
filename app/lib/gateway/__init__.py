"""A WSGI application behind ASGI: the event loop talks to clients, threads run the application.

Slow senders and slow readers hold no thread; both have a deadline and a least rate.
"""
