"""A program that exports traces by the stock exporter, in pieces; it prints what was accepted.

It runs in the environment of `frameworks`: `exporter.py FIRST TRACES SPANS`. Each trace has so many
spans, the root last. On standard output: a JSON object of traces with the ids of accepted spans.
"""

# What it imports is not installed where types are checked.
# mypy: ignore-errors

import json
import random
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import ClassVar

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator


class Ids(IdGenerator):
    """Ids that say whose span it is."""

    def __init__(self, first: int) -> None:
        self.trace, self.span = first, 0

    def generate_trace_id(self) -> int:
        self.trace += 1
        return self.trace

    def generate_span_id(self) -> int:
        self.span += 1
        return self.trace << 32 | self.span


class Noting(OTLPSpanExporter):
    """The stock exporter; it notes the spans of requests that were answered well."""

    accepted: ClassVar[defaultdict[str, list[str]]] = defaultdict(list)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = super().export(spans)
        if result is SpanExportResult.SUCCESS:
            for each in spans:
                context = each.get_span_context()
                self.accepted[f"{context.trace_id:032x}"].append(f"{context.span_id:016x}")
        return result


def main() -> None:
    first, traces, spans = map(int, sys.argv[1:])
    exporter = Noting(timeout=120)
    resource = Resource.create({"service.name": "exporter"})
    provider = TracerProvider(id_generator=Ids(first), resource=resource)
    provider.add_span_processor(
        BatchSpanProcessor(exporter, max_queue_size=1 << 20, schedule_delay_millis=300)
    )
    tracer = provider.get_tracer("exporter")
    for number in range(traces):
        who = {"gen_ai.agent.name": f"agent {number % 7}", "session.id": f"{first}-{number % 50}"}
        with tracer.start_as_current_span("run", attributes={"user.id": "dana", **who}):
            for place in range(spans - 1):
                of = {"gen_ai.operation.name": "execute_tool", "n": place, "text": "x" * 200}
                with tracer.start_as_current_span(f"step {place}", attributes=of):
                    pass
        # Agents take their time; so the pieces cut through runs.
        time.sleep(random.uniform(0, 0.04))
    # Shutting down alone drops what is not sent within 30 seconds.
    provider.force_flush()
    provider.shutdown()
    json.dump(exporter.accepted, sys.stdout)


main()
