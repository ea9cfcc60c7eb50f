"""The servers that end-to-end tests share, and that their files run in one process each."""

from collections.abc import Iterator
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

from tests.e2e.harness.stack import TWO_OF_EACH, Caller, RunningStack, running
from tests.e2e.harness.web import Web, serving
from tests.e2e.held_callers import FOR_EVER, THREADS, TOKEN

# Which files run in one process, for they share what takes long to start.
_TOGETHER = {
    "tests/e2e/test_fairness.py": "stack",
    "tests/e2e/test_main_job.py": "stack",
    "tests/e2e/test_metrics.py": "stack",
    "tests/e2e/test_starvation.py": "web",
    "tests/e2e/test_wire.py": "web",
}


class _BySharedServer(LoadFileScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        return _TOGETHER.get(file, file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """Give files that share a server to one process, where each file is given whole to one."""
    return _BySharedServer(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """Run one stack of two web and two worker processes; it retries within seconds."""
    with running(
        tmp_path_factory.mktemp("stack"),
        RETRY_SCHEDULE="0,1,1",
        PAUSE_SECONDS="1",
        METRICS_TOKEN=TOKEN,
        **TWO_OF_EACH,
    ) as it:
        yield it


@pytest.fixture
def caller(stack: RunningStack) -> Caller:
    """Return the root of a tenant of the test's own."""
    return stack.fresh_tenant()


@pytest.fixture(scope="session")
def patient(environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """Run a web process with few threads that waits for ever for slow senders and readers."""
    with serving(
        environ,
        tmp_path_factory.mktemp("patient"),
        WEB_THREADS=str(THREADS),
        BODY_SECONDS=FOR_EVER,
        ANSWER_SECONDS=FOR_EVER,
        BODY_MEMORY_MIB="8",
        ANSWER_MEMORY_MIB="32",
    ) as web:
        yield web


@pytest.fixture(scope="session")
def strict(environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """Run a web process that gives slow senders and readers a second."""
    with serving(
        environ,
        tmp_path_factory.mktemp("strict"),
        BODY_SECONDS="1",
        BODY_RATE="1000000",
        ANSWER_SECONDS="1",
        ANSWER_RATE="10000000",
        METRICS_TOKEN=TOKEN,
    ) as web:
        yield web
