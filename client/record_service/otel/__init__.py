"""Spans of OpenTelemetry through the spool: they survive the process and an outage.

Needs opentelemetry-sdk and opentelemetry-exporter-otlp-proto-common.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Sequence
from typing import Any

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from record_service.recorder import Recorder
from record_service.recorder.guard import guarded
from record_service.recorder.shapes import Shapes, run_id
from record_service.recorder.spool import Row

# Of the 8 MiB that the service takes unpacked.
_MOST_BYTES = 4 * 1024 * 1024


def exporter(**options: Any) -> SpanExporter:
    """Return an exporter for a `BatchSpanProcessor`; the options are those of `Recorder`.

    `mask` sees names, attributes' texts and numbers, and messages. Raises `RecordsError` without an
    address.
    """
    return _Exporter(Recorder(**{"agent": "opentelemetry", **options}))


class _Exporter(SpanExporter):  # type: ignore[misc,unused-ignore]  # it may not be there
    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.strict = recorder.strict

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Keep spans; they are sent by another thread."""
        return SpanExportResult.SUCCESS if self._keep(spans) else SpanExportResult.FAILURE

    @guarded()
    def _keep(self, spans: Sequence[ReadableSpan]) -> bool:
        request = encode_spans(spans)
        if self.recorder.shapes.is_masking:
            _mask(request, self.recorder.shapes)
        raw = request.SerializeToString()
        if len(raw) > _MOST_BYTES and len(spans) > 1:
            half = len(spans) // 2
            return all([self._keep(spans[:half]), self._keep(spans[half:])])
        self.recorder.append([Row(run_id(), "spans", gzip.compress(raw, 3), ready=True)])
        return True

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Send what was exported; say whether it is at the service."""
        return self.recorder.flush(timeout_millis / 1000)

    def shutdown(self) -> None:
        """Send what is left, as far as that works at once."""
        self.recorder.close(self.recorder.exit_timeout)


def _mask(request: Any, shapes: Shapes) -> None:
    for resource in request.resource_spans:
        _mask_attributes(resource.resource.attributes, shapes)
        for scope in resource.scope_spans:
            _mask_attributes(scope.scope.attributes, shapes)
            for span in scope.spans:
                span.name = shapes.text(span.name, 500, "/name")
                span.status.message = shapes.fit(span.status.message, "/status/message")
                _mask_attributes(span.attributes, shapes)
                for each in (*span.events, *span.links):
                    _mask_attributes(each.attributes, shapes)
                for event in span.events:
                    event.name = shapes.text(event.name, 500, "/events/name")


def _mask_attributes(attributes: Iterable[Any], shapes: Shapes) -> None:
    for each in attributes:
        each.key = shapes.fit(each.key, "/attributes")
        _mask_value(each.value, f"/attributes/{each.key}", shapes)


def _mask_value(value: Any, path: str, shapes: Shapes) -> None:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        for each in value.array_value.values:
            _mask_value(each, path, shapes)
    elif kind == "kvlist_value":
        for each in value.kvlist_value.values:
            each.key = shapes.fit(each.key, path)
            _mask_value(each.value, f"{path}/{each.key}", shapes)
    elif kind is not None and kind != "bool_value":
        told = getattr(value, kind)
        masked = shapes.fit(told, path)
        if kind == "bytes_value" and isinstance(masked, str):
            value.string_value = masked  # it was too large
        elif kind == "bytes_value" and "text" in masked:
            value.string_value = masked["text"]
        elif kind != "bytes_value" and masked != told:
            value.string_value = str(masked)
