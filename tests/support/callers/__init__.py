"""Those who call the service, and what they send.

`api` is a client with a key, `making` makes what most tests begin with, `sending` makes webhooks
and claims and records their deliveries; `matrix` is who may do what, `refusals` what nobody may
send. `console` is a browser without a screen: it keeps cookies and sends forms.
"""
