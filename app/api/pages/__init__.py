"""HTML pages: `site` (documentation), `shared_page` with `shared_view`, and `unsubscribe`.

The latter two are each a `private_page`.
"""
