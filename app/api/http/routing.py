"""Path parameters: one path segment, except the words that are routes of their own."""

from typing import Any

from werkzeug.routing import UnicodeConverter

# /v1/keys/self and /v1/findings/batch.
_WORDS = ("self", "batch")


class SegmentConverter(UnicodeConverter):
    """A path segment that is none of `_WORDS`.

    So an unsupported method on such a route is 405 with that route's own `Allow`, and not the
    lookup of an id.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.regex = rf"(?!(?:{'|'.join(_WORDS)})$){self.regex}"
