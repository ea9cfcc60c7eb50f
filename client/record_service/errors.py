"""What may go wrong with a request: an answer that refuses it, or no answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class RecordsError(Exception):
    """The root of all errors of this package; its text is one line that says what to do."""


class Unreachable(RecordsError):
    """No answer came, however often it was tried."""


class Problem(RecordsError):
    """The service refused (RFC 9457).

    `slug` names the kind of problem, `body` is the whole answer, `retry_after` the seconds after
    which to come again, if it said so; `request_id` and `errors` are of the answer, too.
    """

    def __init__(
        self, status: int, slug: str, body: Mapping[str, Any], retry_after: float | None = None
    ) -> None:
        self.status = status
        self.slug = slug
        self.body = dict(body)
        self.retry_after = retry_after
        super().__init__(self._text())

    @property
    def request_id(self) -> str | None:
        """The request's id, by which the service's logs have it."""
        return self.body.get("request_id")

    @property
    def errors(self) -> list[dict[str, Any]]:
        """The fields that were refused, each with `pointer` and `detail`."""
        return self.body.get("errors") or []

    def _text(self) -> str:
        title = self.body.get("title") or f"HTTP status {self.status}"
        detail = self.body.get("detail")
        fields = "; ".join(
            f"{each.get('pointer', '')}: {each.get('detail', '')}" for each in self.errors
        )
        parts = [str(title), *([str(detail)] if detail and detail != title else [])]
        parts += [fields] if fields else []
        if self.retry_after is not None and self.status in (429, 503):
            parts.append(f"come again in {self.retry_after:.0f} s")
        text = ": ".join(part.rstrip(".") for part in parts)
        return (
            f"{text} (request {self.request_id})"
            if self.request_id and self.status >= 500
            else text
        )


class Invalid(Problem):
    """The request itself is wrong (400, 413, 415, 422, and what else is its sender's mistake)."""


class Denied(Problem):
    """The key is not good, or may not do this (401, 403)."""


class NotFound(Problem):
    """It is not there, or no longer (404, 410)."""


class HistoryRolledBack(NotFound):
    """The service lost the end of its history: what the caller has is of an epoch that ended."""

    @property
    def epoch(self) -> str:
        """The present epoch."""
        return str(self.body["epoch"])

    @property
    def next_after(self) -> int | str:
        """The place up to which both histories are the same: go on from it with `epoch`."""
        place: int | str = self.body["next_after"]
        return place


class Conflict(Problem):
    """It is not in a state for this (409, 412)."""


class Unavailable(Problem):
    """Too many requests, or the service cannot answer now (429, 5xx)."""


def problem(status: int, body: Mapping[str, Any], retry_after: float | None = None) -> Problem:
    """Return the error for an answer that is no success."""
    slug = str(body.get("type") or "").rpartition("/")[2]
    kind: type[Problem] = Invalid
    if status in (401, 403):
        kind = Denied
    elif status in (404, 410):
        kind = HistoryRolledBack if slug == "history-rolled-back" else NotFound
    elif status in (409, 412):
        kind = Conflict
    elif status == 429 or status >= 500:
        kind = Unavailable
    return kind(status, slug, body, retry_after)
