"""HTTP in and out of the service: who calls it, and who is called.

`load` sends requests as fast, or as often, as planned; `siege` is callers that take more than their
share, `hostile` names what they do. `receiver` is where deliveries go, and `arrivals` says
when each finding got there.
"""
