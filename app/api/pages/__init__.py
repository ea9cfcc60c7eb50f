"""HTML pages: `site` (documentation), `shared_page` with `shared_view`, `unsubscribe`."""
