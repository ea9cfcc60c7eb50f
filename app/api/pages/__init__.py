"""HTML pages: `site` (documentation), `client_package` (for pip), and pages opened by a token.

`shared_page` with `shared_view`, and `unsubscribe`, are each a `private_page`.
"""
