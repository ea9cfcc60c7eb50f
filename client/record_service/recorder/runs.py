"""What a run of the spool becomes: put together as text, and parsed as little as can be."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from record_service.recorder.spool import Item


class Session(NamedTuple):
    """A session as a recorder names it."""

    external_id: str
    agent: str
    version: str
    principal: str
    title: str | None
    metadata: str | None

    @classmethod
    def of(cls, head: dict[str, Any]) -> Session:
        """Return the session that an entry names."""
        told = {**head["session"]}
        if told.get("metadata") is not None:
            told["metadata"] = dumps(told["metadata"])
        return cls(**told)


class Record:
    """A run of a spool as the record that it becomes: put together as text, parsed as little."""

    def __init__(self, item: Item) -> None:
        self.run = self.key = item.run
        self.session_id = ""
        self.is_renamed = False
        self.tries = 0
        self.findings: list[str] = []
        self._approvals: list[str] = []
        self._content = "{}"
        self._starts: dict[str, str] = {}
        self._last: dict[tuple[str, str], str] = {}
        self._events: dict[str, list[str]] = {}
        for what, span, body in item.entries:
            if what == "finding":
                self.findings.append(body)
            elif what == "approval":
                self._approvals.append(body)
            elif what == "step":
                self._starts[span] = body
            elif what == "event":
                self._events.setdefault(span, []).append(body)
            else:
                self._last[what, span] = body
        self._head: dict[str, Any] = json.loads(self._last["begin", ""])
        self.session = Session.of(self._head)
        self._is_lost = item.what == "lost"

    def body(self) -> str:
        """Return the record as JSON text, as a batch takes it."""
        head = {name: each for name, each in self._head.items() if name != "session"}
        labels = self._last.get(("labels", ""))
        head["labels"] = {
            **(json.loads(labels) if labels else head["labels"]),
            "trace_id": self.run,
        }
        if self._is_lost:
            head["labels"]["incomplete"] = "true"
        head |= {"session_id": self.session_id, "idempotency_key": self.key}
        content = self._last.get(("content", ""), "{}")
        steps = ",".join(map(self._step, self._starts))
        approvals = ",".join(self._approvals)
        rest = f'"content":{content},"steps":[{steps}],"approvals":[{approvals}]'
        return f"{dumps(head)[:-1]},{rest}}}"

    def _step(self, span: str) -> str:
        parts = [self._starts[span][:-1]]
        attributes = self._last.get(("attributes", span))
        if attributes is not None:
            parts.append(f'"attributes":{attributes}')
        events = self._events.get(span)
        if events:
            parts.append(f'"events":[{",".join(events)}]')
        ended = self._last.get(("ended", span))
        parts.append('"ended_at":null,"status":"unset"' if ended is None else ended[1:-1])
        return ",".join(parts) + "}"


def dumps(value: object) -> str:
    """Return JSON text, as short as it is."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
