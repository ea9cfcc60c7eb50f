"""A WSGI application behind ASGI: the event loop talks to clients, threads run the application.

Slow senders and readers hold no thread. `gateway` reads `bodies` (or hands out `streams`), takes
`turns` at `threads` with an `environ`, and sends `answers` by `sockets`; `client` tells who left,
`connections` bounds who waits, `holdoff` delays who was refused.
"""
