"""Those who call the service, and what they send.

`api` is a key's holder, `making` makes what most tests begin with, `sending` makes webhooks and
says what came of their events; `matrix` is who may do what, `refusals` what nobody may send.
`console` is a browser without a screen.
"""
