"""A record as a page for people: `rendering` writes the share page and a pack's `record.html`."""
