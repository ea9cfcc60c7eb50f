"""Callers of the service, and what they send.

`api` is a client with a key, `making` makes what most tests begin with, `sending` makes webhooks
and claims and records their deliveries. `matrix` has the rights of each key on each route,
`refusals` bodies that every route refuses. `console` keeps cookies and sends forms, as a browser
does.
"""
