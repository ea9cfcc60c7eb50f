"""The servers that end-to-end tests share: one stack, one house for faults, two web processes.

The files that share one run in one process, one after the other.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

from tests.e2e.harness.misfortune import House, house
from tests.e2e.harness.ordeal import SETTINGS
from tests.e2e.harness.stack import TWO_OF_EACH, Caller, RunningStack, running
from tests.e2e.harness.web import FOR_EVER, THREADS, TOKEN, Web, serving

_SHARE = {
    "stack": ("agents", "fairness", "main_job", "metrics", "readme"),
    "house": ("client", "faults", "front_door"),
    "web": ("starvation", "wire"),
}
_TOGETHER = {
    f"tests/e2e/test_{name}.py": shared for shared, names in _SHARE.items() for name in names
}


class _BySharedServer(LoadFileScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        return _TOGETHER.get(file, file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """Give files that share a server to one process, where each file is given whole to one."""
    return _BySharedServer(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have the figures of the stack read before it has served another test."""
    items.sort(key=lambda item: item.path.name != "test_metrics.py")


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


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Run one service whose processes and stores tests may kill; each has a tenant of its own."""
    with house(tmp_path_factory.mktemp("house"), SETTINGS) as it:
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
