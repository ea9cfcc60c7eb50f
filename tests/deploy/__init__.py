"""`make test-deploy`: the service on Debian's servers, as an operator deploys it.

`debian` installs and `servers` starts them; a `site` runs the Procfile on them, and a `journey` is
what is done there. Its parts are `variants`, `words`, `previous` and `restoring`; `telling` prints
what holds, and `figures` what it took.
"""
