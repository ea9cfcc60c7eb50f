"""JSON over HTTP: `http/` parses requests and writes responses, `resources/` has a file a resource.

`pages/` has what people see without a console: documentation, shared records, unsubscribing.
"""
