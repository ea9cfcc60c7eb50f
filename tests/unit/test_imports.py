"""Imports without garbage collection: what is imported is left out of later collections."""

import gc
from collections.abc import Iterator
from importlib import import_module

import pytest

from app.lib import process


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """Leave the collector as other tests have it."""
    yield
    gc.enable()


def test_nothing_is_collected_within_and_what_is_there_is_kept_from_then_on() -> None:
    frozen = gc.get_freeze_count()
    with process.importing():
        assert not gc.isenabled()
        made: list[list[int]] = [[] for _ in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= frozen + len(made)


def test_a_failed_import_leaves_the_collector_running() -> None:
    with pytest.raises(ModuleNotFoundError), process.importing():
        import_module("there_is_no_such_module")
    assert gc.isenabled()


def test_a_process_that_collects_nothing_goes_on_so() -> None:
    gc.disable()
    with process.importing():
        pass
    assert not gc.isenabled()
