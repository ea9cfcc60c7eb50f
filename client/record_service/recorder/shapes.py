"""What is recorded in the shapes that the service takes: masked, cut to length, as JSON."""

from __future__ import annotations

import inspect
import secrets
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, Callable

from record_service import values
from record_service.recorder.spool import Row

SEVERITIES = ("info", "low", "medium", "high", "critical")
_MOST_FINDING = 200 * 1024


class Shapes:
    """Shapes for one recorder; `dropped` counts the labels that were too many."""

    def __init__(self, mask: Callable[..., str] | None, *, strict: bool) -> None:
        self.dropped = 0
        self._strict = strict
        self._mask = mask
        self.is_masking = mask is not None
        if mask is not None:
            given = mask
            try:
                inspect.signature(mask).bind("", "")
            except (TypeError, ValueError):
                self._mask = lambda text, _: given(text)

    def fit(self, value: Any, path: str, most: int = values.MAX_BYTES) -> Any:
        """Return a value as JSON."""
        return values.fit(value, strict=self._strict, mask=self._mask, most=most, path=path)

    def text(self, value: object, most: int, path: str, default: str = "unnamed") -> str:
        """Return a name or title."""
        return values.text(value, most, default, self._mask, path)

    def object(self, value: Any, path: str, most: int = values.MAX_BYTES) -> dict[str, Any]:
        """Return a value as a JSON object."""
        fitted = self.fit(value, path, most)
        return fitted if isinstance(fitted, dict) else {"value": fitted}

    def labels(self, given: Any, most: int) -> dict[str, str]:
        """Return labels; raises ValueError for what cannot be kept if strict."""
        kept = dict(given) if isinstance(given, Mapping) else {}
        lost = max(0, len(kept) - most) if isinstance(given, Mapping) else 1
        if self._strict and lost:
            raise ValueError(f"Labels are a mapping of at most {most} texts.")
        self.dropped += lost
        made = {}
        for name, value in list(kept.items())[:most]:
            said = self.text(name, 100, "/labels").replace(":", ".")
            made[said] = self.text(value, 500, f"/labels/{name}", "")
        return made

    def finding(
        self, rule: str, severity: str, title: str, detail: str | None, data: Any
    ) -> dict[str, Any]:
        """Return a finding; raises ValueError for its severity if strict."""
        if self._strict and severity not in SEVERITIES:
            raise ValueError(f"The severity is one of {', '.join(SEVERITIES)}.")
        made: dict[str, Any] = {
            "rule": self.text(rule, 200, "/findings/rule"),
            "severity": severity,
            "title": self.text(title, 500, "/findings/title"),
        }
        if detail is not None:
            made["detail"] = self.text(detail, 10_000, "/findings/detail")
        if data is not None:
            made["data"] = self.fit(data, "/findings/data", _MOST_FINDING)
        return made


def run_id() -> str:
    """Return a trace id, later ones behind earlier ones: an index grows at its end."""
    return f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(10)}"


def now() -> str:
    """Return this moment as RFC 3339."""
    return stamp(time.time())


def stamp(seconds: float) -> str:
    """Return a Unix time as RFC 3339."""
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%dT%H:%M:%S.%fZ}"


def named(fitted: Any) -> Any:
    """Return inputs or outputs as the service takes them: an object or names, else a `value`."""
    is_names = isinstance(fitted, list) and all(isinstance(each, str) for each in fitted)
    return fitted if isinstance(fitted, dict) or is_names else {"value": fitted}


def size_of(row: Row) -> int:
    """Return the bytes of an entry."""
    body = row.body
    return len(body) if isinstance(body, bytes) or body.isascii() else len(body.encode())
