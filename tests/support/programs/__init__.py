"""Programs that tests run.

`chromium` and `promtool` are found or fetched; `frameworks` has packages of others, with which
`exporter` sends spans; `processes` are the Procfile's, and `documents` has
the commands and code of README and docs.
"""
