"""`make test-deploy`: the service on Debian's servers, as an operator deploys it.

`debian` installs and `servers` starts them; a `site` runs the Procfile on them, and a `journey` is
the requests that are made there. The parts are `variants`, `words` (README's commands) and
`restoring`; a `command` runs them, and prints what holds.
"""
