"""Programs that tests run.

`chromium` and `promtool` are found or fetched, `frameworks` of agents installed, with which
`exporter` sends spans; `oidc_provider` signs people in; `processes` are the Procfile's, and
`documents` has the commands and code of README and docs.
"""
