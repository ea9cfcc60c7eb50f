"""HTML pages: `site` (documentation), `client_package` (for pip), and pages opened by a token.

`shared_page` with `bundle_view`, and `unsubscribe`, are each a `private_page`.
"""
