"""HTTP in and out of the service: who calls it, and who is called.

`load` asks as fast or as often as planned, `siege` takes more than its share; `receivers` are
where deliveries go, `receiver` is our own; `arrivals` says when each finding got there.
"""
