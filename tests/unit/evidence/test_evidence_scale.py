"""Ten times the steps cost ten times the work, and hardly more memory: exports are streamed."""

import time
import tracemalloc
from collections.abc import Callable, Iterator
from functools import cache

import pytest

from app.evidence import otlp, prov
from app.evidence.bundle import Bundle
from app.evidence.streaming import CHUNK_BYTES
from tests.unit.evidence.records import BASE_URL, SHA256, VERSION, many_steps

Write = Callable[[Bundle], Iterator[bytes]]
FEW, MANY = 400, 4_000
# Tracing the memory makes everything seven times slower.
TRACED = 2_000

WRITERS: dict[str, Write] = {
    "prov.json": lambda bundle: prov.write(bundle, sha256=SHA256, base_url=BASE_URL),
    "otlp-traces.json": lambda bundle: otlp.write_traces(bundle, version=VERSION),
}

record = cache(many_steps)


def seconds(write: Write, bundle: Bundle) -> float:
    begun = time.process_time()
    for _ in write(bundle):
        pass
    return time.process_time() - begun


def peak(write: Write, bundle: Bundle) -> int:
    tracemalloc.start()
    try:
        for chunk in write(bundle):
            assert len(chunk) < 2 * CHUNK_BYTES
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", WRITERS)
def test_work_grows_as_the_steps_do(name: str) -> None:
    few = min(seconds(WRITERS[name], record(FEW)) for _ in range(2))
    many = seconds(WRITERS[name], record(MANY))
    # Of the process's own time: ten times as long; quadratic would be a hundred times.
    assert many < 5 * (MANY / FEW) * few


def test_the_memory_of_a_trace_does_not_grow() -> None:
    write = WRITERS["otlp-traces.json"]
    assert peak(write, record(TRACED)) < 1.5 * peak(write, record(TRACED // 10))


def test_the_memory_of_a_prov_document_is_that_of_its_names() -> None:
    write = WRITERS["prov.json"]
    few, many = peak(write, record(TRACED // 10)), peak(write, record(TRACED))
    assert many < 1.5 * 10 * few
    # The document itself has over a kilobyte a step.
    assert (many - few) / (TRACED - TRACED // 10) < 400
