"""Path parameters: any one segment of a path but the words that are routes of their own."""

from typing import Any

from werkzeug.routing import UnicodeConverter

# /v1/keys/self and /v1/findings/batch.
_WORDS = ("self", "batch")


class SegmentConverter(UnicodeConverter):
    """One segment of a path that is none of `_WORDS`.

    So a method that such a route does not have is 405 there, with that route's own `Allow`, and not
    the lookup of an id.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.regex = rf"(?!(?:{'|'.join(_WORDS)})$){self.regex}"
