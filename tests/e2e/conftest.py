"""Web processes with long and short deadlines."""

from collections.abc import Iterator

import pytest

from tests.e2e.harness.web import Web, serving
from tests.e2e.held_callers import FOR_EVER, THREADS, TOKEN


@pytest.fixture(scope="module")
def patient(environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """Run a web process with few threads that waits for ever for slow senders and readers."""
    folder = tmp_path_factory.mktemp("patient")
    with serving(
        environ,
        folder,
        WEB_THREADS=str(THREADS),
        BODY_SECONDS=FOR_EVER,
        ANSWER_SECONDS=FOR_EVER,
        BODY_MEMORY_MIB="8",
        ANSWER_MEMORY_MIB="32",
    ) as web:
        yield web


@pytest.fixture(scope="module")
def strict(environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """Run a web process that gives slow senders and readers a second."""
    folder = tmp_path_factory.mktemp("strict")
    with serving(
        environ,
        folder,
        BODY_SECONDS="1",
        BODY_RATE="1000000",
        ANSWER_SECONDS="1",
        ANSWER_RATE="10000000",
        METRICS_TOKEN=TOKEN,
    ) as web:
        yield web
