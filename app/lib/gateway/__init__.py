"""A WSGI application behind ASGI: the event loop talks to clients, threads run the application.

Slow senders and slow readers hold no thread; both have a deadline and a least rate. `gateway` reads
`bodies` (or hands out `streams`), takes `turns` at `threads` with an `environ`, and sends `answers`
by `sockets`; `holdoff` delays those that were refused a moment ago.
"""
