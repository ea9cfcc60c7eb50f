"""HTML pages: `site` (documentation), `client_package` (for pip), and those that a token opens.

`shared_page` with `shared_view`, and `unsubscribe`, are each a `private_page`.
"""
