"""Programs that tests run.

`debian` has Chromium and promtool, `frameworks` of agents are installed, with which
`exporter` sends spans; `oidc_provider` signs people in; `processes` are the Procfile's, and
`documents` has the commands and code of README and docs.
"""
