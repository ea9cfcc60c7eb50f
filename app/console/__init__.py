"""The console: server-rendered HTML pages over the same core functions as the API.

`site` assembles the `pages` and the `frame` that they share.
"""
