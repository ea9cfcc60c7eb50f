"""OpenAI Agents: `add_trace_processor(RecordingProcessor(recorder))`; each trace is a record."""

from __future__ import annotations

import json
from typing import Any, final

from agents.tracing import Span, Trace, TracingProcessor

from record_service.recorder import Record, Recorder, Step
from record_service.recorder.guard import guarded

_KINDS = {
    "agent": "invoke_agent",
    "function": "execute_tool",
    "generation": "chat",
    "response": "chat",
    "guardrail": "apply_guardrail",
}


@final
class RecordingProcessor(TracingProcessor):  # type: ignore[misc,unused-ignore]  # it may not be there
    """Records traces: `group_id` is the session, metadata's `principal` the principal."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.strict = recorder.strict
        self._records: dict[str, Record] = {}
        self._steps: dict[str, Step] = {}

    @guarded()
    def on_trace_start(self, trace: Trace) -> None:
        """Begin a record."""
        told: dict[str, Any] = trace.export() or {}
        metadata = told.get("metadata") or {}
        session = self.recorder.session(
            told.get("group_id") or trace.trace_id, principal=metadata.get("principal")
        )
        labels = {"openai.trace_id": trace.trace_id}
        record = session.record("invoke_agent", trace.name, labels=labels)
        self._records[trace.trace_id] = record.start()

    @guarded()
    def on_trace_end(self, trace: Trace) -> None:
        """End the record."""
        record = self._records.pop(trace.trace_id, None)
        if record is not None:
            record.end()

    @guarded()
    def on_span_start(self, span: Span[Any]) -> None:
        """Begin a step."""
        record = self._records.get(span.trace_id)
        if record is not None:
            data = span.span_data
            name = getattr(data, "name", None) or data.type
            step = record.step(name, kind=_KINDS.get(data.type, data.type))
            self._steps[span.span_id] = step.start(
                self._steps.get(span.parent_id or "", record.root)
            )

    @guarded()
    def on_span_end(self, span: Span[Any]) -> None:
        """End the step: only now are its inputs and outputs there."""
        step = self._steps.pop(span.span_id, None)
        if step is None:
            return
        data = span.span_data
        response = getattr(data, "response", None)
        step.inputs = _parsed(getattr(data, "input", None))
        step.outputs = getattr(data, "output", None) if response is None else response.output
        model = getattr(data, "model", None) or getattr(response, "model", None)
        if model:
            step.attributes["gen_ai.request.model"] = str(model)
        usage = getattr(data, "usage", None) or getattr(response, "usage", None)
        if usage:
            step.attributes["usage"] = usage
        if getattr(data, "triggered", False):
            rule = f"guardrail.{data.name}"
            step.record.finding(rule, severity="high", title=f"The guardrail {data.name} refused")
        error = span.error
        step.end(None if error is None else str(error["message"]))

    def shutdown(self) -> None:
        """Send what is left."""
        self.recorder.flush(self.recorder.exit_timeout)

    def force_flush(self) -> None:
        """Send what has ended."""
        self.recorder.flush()


def _parsed(told: Any) -> Any:
    """Return the arguments of a call, which are JSON text, as what they say."""
    try:
        return json.loads(told) if isinstance(told, str) else told
    except ValueError:
        return told
