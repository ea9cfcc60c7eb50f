"""HTML pages: `site` with the `reference` of the API; `private_pages`, which a token opens."""
