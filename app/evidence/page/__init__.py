"""A record as a page for people: the service's share page and a pack's `record.html`."""
