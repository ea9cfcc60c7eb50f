"""JSON over HTTP: `http/` parses requests and writes responses, `resources/` has a file a resource.

`pages/` has the pages outside the console: documentation, shared records, unsubscribing.
"""
