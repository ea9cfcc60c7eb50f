"""JSON over HTTP: one blueprint a resource, with its schemas; the rest is what they share."""
