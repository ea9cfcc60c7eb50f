"""JSON responses, serialised while the route still runs."""

import json
from collections.abc import Mapping
from typing import Any

from flask import Response


def answer(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Write a JSON-ready value as the answer to this request."""
    return Response(encode(body), status, dict(headers or {}), content_type="application/json")


def no_content() -> Response:
    """Answer 204, without a body."""
    answered = Response(status=204)
    del answered.headers["Content-Type"]
    return answered


def encode(body: Any) -> bytes:
    """Write a JSON-ready value as compact UTF-8."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
