"""HTML pages: `site` with the `reference` of the API, `client_package` (for pip).

Others are opened by a token: `shared_page` and `unsubscribe` are each a `private_page`.
"""
