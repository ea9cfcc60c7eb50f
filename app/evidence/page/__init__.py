"""A record as a page for people: `view` is what it shows, `rendering` writes it.

The service's share page and a pack's `record.html` have one template.
"""
