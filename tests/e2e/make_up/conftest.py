"""Stacks of `make up`, ended and removed after each test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dev import processes
from dev.data_dir import OWNED_BY
from tests.e2e.harness.stack import remove_data
from tests.e2e.make_up.dev_stack import Stack
from tests.support.servers.ports import own_port


@pytest.fixture
def make_stack(tmp_path: Path) -> Iterator[Callable[..., Stack]]:
    """Return a maker of stacks; whatever they left is removed after the test."""
    made: list[Stack] = []

    def make(name: str = "data", folder: Path = tmp_path) -> Stack:
        said = tmp_path / f"{name}.{len(made)}.said"
        made.append(Stack(folder / name, own_port(), said))
        return made[-1]

    yield make
    for stack in made:
        if hasattr(stack, "process"):
            stack.process.kill()
            stack.process.wait()
            processes.kill_carrying(**{OWNED_BY: str(stack.data_dir)})
        remove_data(stack.data_dir)


@pytest.fixture
def stack(make_stack: Callable[..., Stack]) -> Stack:
    return make_stack()
