"""JSON documents in columns: stored as canonical text, read as values; `None` for no document.

Text and not `jsonb`, which rewrites numbers and refuses U+0000. Responses are read back from the
text, so a create and every later read return the same value.
"""

import json
from typing import Any

from app.lib import canonical_json


def to_text(value: object) -> str | None:
    """Return the canonical JSON (RFC 8785) to store, or None when there is no document."""
    return None if value is None else canonical_json.dumps(value).decode("utf-8")


def from_text(text: str | None) -> Any:
    """Return the value of a stored document, or None when there is none."""
    return None if text is None else json.loads(text)
