"""Stacks of `make up`, ended and removed after each test."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.harness.stack import START_SECONDS, remove_data
from tests.e2e.make_up.dev_stack import Stack, gone
from tests.support.faults import until
from tests.support.servers.ports import own_port


@pytest.fixture
def make_stack(tmp_path: Path) -> Iterator[Callable[..., Stack]]:
    """Return a maker of stacks; whatever they left is removed after the test."""
    made: list[Stack] = []

    def make(name: str = "data", port: int | None = None) -> Stack:
        said = tmp_path / f"{name}.{len(made)}.said"
        made.append(Stack(tmp_path / name, port or own_port(), said))
        return made[-1]

    yield make
    for stack in made:
        if hasattr(stack, "process"):
            whole = stack.all_of_it()
            stack.process.kill()
            stack.process.wait()
            until(partial(gone, whole), START_SECONDS)
        remove_data(stack.data_dir)


@pytest.fixture
def stack(make_stack: Callable[..., Stack]) -> Stack:
    return make_stack()
