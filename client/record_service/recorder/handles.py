"""Sessions and records as an agent holds them; each method appends and returns."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from contextvars import Token
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, final

from record_service import values
from record_service.recorder.guard import guarded
from record_service.recorder.shapes import now, run_id, size_of, stamp
from record_service.recorder.spool import Row
from record_service.recorder.steps import Late, Step

if TYPE_CHECKING:
    from record_service.recorder.recorder import Recorder
    from record_service.schemas import Severity

MOST_BYTES = 7 * 1024 * 1024
"""How large a record becomes at most, of the 8 MiB that the service takes."""

_MOST_STEPS = 50_000
_MOST_APPROVALS = 100
# What a step takes without its inputs and outputs.
_LEAST_ROOM = 4096
_MOST_LABELS = 60
_MOST_METADATA = 64 * 1024
Outcome = Literal["succeeded", "failed", "cancelled"]
_CANCELLED = ("CancelledError", "KeyboardInterrupt", "SystemExit", "GeneratorExit")


@final
class Session:
    """A run or a conversation of the agent on behalf of a principal; threads may share it."""

    def __init__(
        self,
        recorder: Recorder,
        external_id: str | None,
        principal: str,
        title: str | None,
        metadata: Mapping[str, Any] | None,
    ) -> None:
        self.recorder = recorder
        self.strict = recorder.strict
        self.is_run = external_id is None
        self.external_id = values.text(external_id or run_id(), 480, "unnamed")
        self.named: dict[str, Any] = {
            "external_id": self.external_id,
            "agent": recorder.agent,
            "version": recorder.version,
            "principal": principal,
            "title": None if title is None else recorder.shapes.text(title, 500, "/session/title"),
            "metadata": None,
        }
        if metadata is not None:
            fitted = recorder.shapes.object(metadata, "/session/metadata", _MOST_METADATA)
            self.named["metadata"] = fitted
        self._epoch = recorder.epoch
        self._tokens: list[Token[Session | None]] = []

    def record(
        self,
        kind: str,
        title: str,
        *,
        labels: Mapping[str, str] | None = None,
        content: Any = None,
        inputs: Any = None,
    ) -> Record:
        """Return a record to begin, by `with` or `start`, of what the agent does now."""
        return Record(self, kind, title, labels or {}, content, inputs)

    @guarded()
    def finding(
        self,
        rule: str,
        *,
        severity: Severity,
        title: str,
        detail: str | None = None,
        data: Any = None,
    ) -> None:
        """Add a finding about the session; it is sent at once."""
        finding = self.recorder.shapes.finding(rule, severity, title, detail, data)
        self._append("remark", {"session": self.named, "finding": finding})

    @guarded()
    def complete(self, outcome: Outcome = "succeeded", summary: str | None = None) -> None:
        """Complete the session: as `succeeded`, `failed` or `cancelled`.

        What is recorded later in one with an external id opens the next, `<external_id>#2`.
        """
        completion: dict[str, Any] = {"outcome": outcome}
        if summary is not None:
            completion["summary"] = self.recorder.shapes.text(summary, 10_000, "/session/summary")
        self._append("complete", {"session": self.named, "completion": completion})

    def _append(self, what: str, body: dict[str, Any]) -> None:
        self.recorder.append([Row(run_id(), what, values.encode(body), ready=True)])

    def __enter__(self) -> Session:
        self._tokens.append(self.recorder.current_session.set(self))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leave()
        # A forked child that leaves its parent's `with` ends nothing of its parent's.
        if self.is_run and self._epoch == self.recorder.epoch:
            self.complete(_outcome(error))

    def _leave(self) -> None:
        """Set back what was current in this context, which others have entered it in as well."""
        for token in reversed(list(self._tokens)):
            with suppress(ValueError):
                self.recorder.current_session.reset(token)
                self._tokens.remove(token)
                return
        # A generator's end runs in another context than its beginning.
        del self._tokens[:1]


@final
class Record:
    """A record that grows in the spool until it ends; threads and tasks may share it."""

    def __init__(
        self,
        session: Session,
        kind: str,
        title: str,
        labels: Mapping[str, str],
        content: Any,
        inputs: Any,
        origin: Record | None = None,
    ) -> None:
        self.session = session
        self.recorder = session.recorder
        self.strict = session.strict
        self.kind, self.title = kind, title
        self.id = run_id()
        self.root = Step(self, title, kind, inputs, None)
        self.outputs: Any = None
        self.dropped = 0
        self.origin = origin
        self._labels = labels
        self._content = content
        self._epoch = self.recorder.epoch
        self._lock = threading.RLock()
        self._room = MOST_BYTES
        self._steps = self._approvals = 0
        self._unwritten: list[Row] = []
        self.has_begun = self._has_ended = False

    @property
    def is_over(self) -> bool:
        """Whether it takes no more: it has ended, or another process began it."""
        return self._has_ended or self._epoch != self.recorder.epoch

    @property
    def room(self) -> int:
        """The bytes that a value of it may have."""
        return max(0, self._room - _LEAST_ROOM)

    @guarded(returns="self")
    def start(self) -> Record:
        """Begin the record; `with` does the same."""
        recorder = self.recorder
        if self.origin is None or not self.origin.has_begun:
            self._labels = recorder.shapes.labels(self._labels, _MOST_LABELS)
        if self.origin is not None:
            self._labels = {**self._labels, "supplement_of": self.origin.id}
        head = {
            "session": self.session.named,
            "kind": recorder.shapes.text(self.kind, 200, "/kind"),
            "title": recorder.shapes.text(self.title, 500, "/title"),
            "occurred_at": now(),
            "labels": self._labels,
        }
        rows = [Row(self.id, "begin", values.encode(head)), self.root.opened()]
        if self._content is not None:
            rows.append(self._fact("content", self._content))
        self.has_begun = True
        self.write(rows)
        return self

    def step(
        self,
        name: str,
        *,
        kind: str = "step",
        inputs: Any = None,
        attributes: dict[str, Any] | None = None,
    ) -> Step:
        """Return a step to begin, by `with` or `start`, under the current step of the record."""
        return Step(self, name, kind, inputs, attributes)

    @guarded()
    def finding(
        self,
        rule: str,
        *,
        severity: Severity,
        title: str,
        detail: str | None = None,
        data: Any = None,
    ) -> None:
        """Add a finding (severity info, low, medium, high or critical), sent with the record."""
        if self.is_over:
            self.session.finding(rule, severity=severity, title=title, detail=detail, data=data)
            return
        finding = self.recorder.shapes.finding(rule, severity, title, detail, data)
        self.write([Row(self.id, "finding", values.encode(finding))])

    @guarded()
    def approval(
        self, approved_by: str, decision: str, note: str | None = None, at: datetime | None = None
    ) -> None:
        """Say that a person decided: `approved`, `rejected`, or any word of yours."""
        self._approvals += 1
        if self.is_over or self._approvals > _MOST_APPROVALS:
            raise Late(f"The record {self.id} takes no more approvals.")
        text = self.recorder.shapes.text
        told = {
            "approved_by": text(approved_by, 200, "/approvals/approved_by"),
            "decision": text(decision, 100, "/approvals/decision"),
            "at": now() if at is None else stamp(at.timestamp()),
        }
        if note is not None:
            told["note"] = text(note, 10_000, "/approvals/note")
        self.write([Row(self.id, "approval", values.encode(told))])

    @guarded()
    def label(self, name: str, value: str) -> None:
        """Set a label."""
        if not self.has_begun:
            self._labels = {**self._labels, name: value}
            return
        # The others were masked before: a mask that makes pseudonyms would mask those.
        labels = {**self._labels, **self.recorder.shapes.labels({name: value}, 1)}
        if len(labels) > _MOST_LABELS:
            raise Late(f"The record {self.id} has {_MOST_LABELS} labels.")
        self._labels = labels
        self.write([Row(self.id, "labels", values.encode(self._labels))])

    @property
    def content(self) -> Any:
        """What the record is about: any value."""
        return self._content

    @content.setter
    def content(self, content: Any) -> None:
        self._content = content
        self._write_content()

    @guarded()
    def _write_content(self) -> None:
        self.write([self._fact("content", self._content)])

    def _fact(self, name: str, value: Any) -> Row:
        return Row(
            self.id, name, values.encode(self.recorder.shapes.fit(value, f"/{name}", self.room))
        )

    @guarded()
    def end(self, error: BaseException | str | None = None) -> None:
        """End the record, which is then sent; `with` does the same."""
        # Before the lock, which a thread of the process that began it may have held at a fork.
        if self.is_over or not self.has_begun:
            return
        with self._lock:
            if self.outputs is not None:
                self.root.outputs = self.outputs
            rows = self.root.closed(error)
            if self.dropped:
                told = {**self._labels, "dropped": str(self.dropped)}
                rows.append(Row(self.id, "labels", values.encode(told)))
            rows.append(Row(self.id, "end", "", ready=True))
            self._has_ended = True
            if not self._written(rows):
                self.recorder.owe(self.id, [*self._unwritten, *rows])

    def write(self, rows: list[Row], *, is_step: bool = False) -> None:
        """Append entries. Raises `Late`, `Full` or sqlite3.Error for what is dropped."""
        if self.is_over or not self.has_begun:
            raise Late(f"The record {self.id} has not begun, or has ended.")
        with self._lock:
            size = sum(map(size_of, rows))
            if self._has_ended or size > self._room or (is_step and self._steps >= _MOST_STEPS):
                self.dropped += 1
                raise Late(f"The record {self.id} is full, or has just ended.")
            if not self._written(rows):
                self.dropped += 1
                self.recorder.raise_refusal()
            self._room -= size
            self._steps += is_step

    def _written(self, rows: list[Row]) -> bool:
        """Append, after its beginning where the disk has not taken that yet."""
        if self.recorder.try_append([*self._unwritten, *rows]):
            self._unwritten = []
            return True
        # Without its beginning a record is nothing: that is kept until the disk takes it.
        if rows[0].what == "begin":
            self._unwritten = rows
            return True
        return False

    def supplement(self) -> Record:
        """Return a record of its own for what comes when this one is over."""
        return Record(self.session, self.kind, self.title, self._labels, None, None, self).start()

    def __enter__(self) -> Record:
        self.start()
        self.root.enter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.root.leave()
        self.end(error)


def _outcome(error: BaseException | None) -> Outcome:
    if error is None:
        return "succeeded"
    return "cancelled" if type(error).__name__ in _CANCELLED else "failed"
