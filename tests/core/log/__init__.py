"""The transparency log, its anchors and witnesses."""
