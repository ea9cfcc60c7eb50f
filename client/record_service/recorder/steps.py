"""A step of a record, as an agent holds it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, final

from record_service import values
from record_service.recorder.guard import guarded
from record_service.recorder.shapes import named, now
from record_service.recorder.spool import Row

if TYPE_CHECKING:
    from record_service.recorder.handles import Record
    from record_service.recorder.recorder import Recorder


class Late(Exception):
    """Something was added to what takes no more."""


@final
class Step:
    """A step of a record.

    Until it ends set `outputs`, `attributes`, and `inputs` if it began without.
    """

    def __init__(
        self,
        record: Record,
        name: str,
        kind: str,
        inputs: Any,
        attributes: dict[str, Any] | None,
    ) -> None:
        self.record = record
        self.strict = record.strict
        self.span = secrets.token_hex(8)
        self.inputs = inputs
        self.outputs: Any = None
        self.attributes = {} if attributes is None else attributes
        self._name, self._kind = name, kind
        self._has_inputs = self.has_ended = False
        self._parent: str | None = None
        self._body = ""
        self._own_record = False
        self.above: Step | None = None
        self._has_entered = False

    @property
    def recorder(self) -> Recorder:
        """The recorder of its record."""
        return self.record.recorder

    @guarded(returns="self")
    def start(self, parent: Step | None = None) -> Step:
        """Begin the step, under another or under the current one; `with` does the same."""
        record = self.record
        above = record.recorder.current_step.get() if parent is None else parent
        if record.is_over:
            if above is not None and above.record.origin is record and not above.record.is_over:
                self.record = above.record
            else:
                self.record = record.supplement()
                self._own_record = True
        if above is None or above.record is not self.record:
            above = self.record.root
        self._parent = above.span
        self.record.write([self.opened()], is_step=True)
        return self

    def opened(self) -> Row:
        """Return the entry of its beginning."""
        recorder = self.record.recorder
        told: dict[str, Any] = {
            "name": recorder.shapes.text(self._name, 500, "/steps/name"),
            "kind": recorder.shapes.text(self._kind, 200, "/steps/kind"),
            "started_at": now(),
            "span_id": self.span,
        }
        if self._parent is not None:
            told["parent_span_id"] = self._parent
        if self.inputs is not None:
            # Now: what is called may change them.
            told["inputs"] = named(recorder.shapes.fit(self.inputs, "/inputs", self.record.room))
            self._has_inputs = True
        self._body = values.encode(told)
        return Row(self.record.id, "step", self._body, self.span)

    @guarded()
    def event(self, name: str, attributes: Mapping[str, Any] | None = None) -> None:
        """Add an event at this moment."""
        recorder = self.record.recorder
        told = {
            "name": recorder.shapes.text(name, 500, "/events/name"),
            "at": now(),
            "attributes": recorder.shapes.object(attributes or {}, "/events", self.record.room),
        }
        self.record.write([Row(self.record.id, "event", values.encode(told), self.span)])

    @guarded()
    def end(self, error: BaseException | str | None = None) -> None:
        """End the step, as failed if there is an error; `with` does the same."""
        if self.has_ended:
            return
        self.has_ended = True
        if self.record.is_over:
            # It outlived its record: a supplement has the whole of it.
            self.record = self.record.supplement()
            self._own_record = True
            self.record.write([Row(self.record.id, "step", self._body, self.span)], is_step=True)
        try:
            self.record.write(self.closed(error))
        finally:
            if self._own_record:
                self.record.end()

    def closed(self, error: BaseException | str | None) -> list[Row]:
        """Return the entries of its end."""
        self.has_ended = True
        recorder, run, rows = self.record.recorder, self.record.id, []
        if error is not None:
            kind = type(error)
            told = {
                "exception.type": f"{kind.__module__}.{kind.__qualname__}",
                "exception.message": recorder.shapes.text(error, 10_000, "/exception", ""),
            }
            event = {"name": "exception", "at": now(), "attributes": told}
            rows.append(Row(run, "event", values.encode(event), self.span))
        if self.attributes:
            attributes = recorder.shapes.object(self.attributes, "/attributes", self.record.room)
            rows.append(Row(run, "attributes", values.encode(attributes), self.span))
        ended: dict[str, Any] = {"ended_at": now(), "status": "ok" if error is None else "error"}
        if self.inputs is not None and not self._has_inputs:
            fitted = recorder.shapes.fit(self.inputs, "/inputs", self.record.room)
            ended["inputs"] = named(fitted)
        if self.outputs is not None:
            ended["outputs"] = named(
                recorder.shapes.fit(self.outputs, "/outputs", self.record.room)
            )
        rows.append(Row(run, "ended", values.encode(ended), self.span))
        return rows

    def enter(self) -> None:
        """Be the current step."""
        current = self.record.recorder.current_step
        if not self._has_entered:
            self._has_entered, self.above = True, current.get()
        current.set(self)

    def leave(self) -> None:
        """Be it no longer: the nearest above that goes on is.

        Generators leave in any order, and in any context: there another step may be current.
        """
        current = self.record.recorder.current_step
        if current.get() is not self:
            return
        above = self.above
        while above is not None and above.has_ended:
            above = above.above
        current.set(above)

    def __enter__(self) -> Step:
        self.start()
        self.enter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.leave()
        self.end(error)
