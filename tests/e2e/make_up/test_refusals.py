"""`make up` refuses bad settings and taken ports by name before it starts."""

import socket
from pathlib import Path

import pytest

from dev.stores.postgres import EmbeddedPostgres
from dev.stores.valkey import EmbeddedValkey
from tests.e2e.harness.stack import START_SECONDS
from tests.e2e.make_up.dev_stack import Stack

pytestmark = [pytest.mark.stacks, pytest.mark.toolbox]


def test_a_taken_port_is_refused_before_anything_starts(stack: Stack) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", stack.port))
        other.listen()
        stack.launch()
        assert stack.process.wait(START_SECONDS) == 1
    assert stack.said == f"make up: port {stack.port} is taken: set PORT to a free one\n"
    assert not (stack.data_dir / "postgres").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    # One that `make up` reads itself, one of all processes, and one that stands for a store.
    [("PORT", "65536"), ("MASTER_KEYS", "short"), ("DATABASE_URL", "mysql://localhost/records")],
)
def test_a_bad_setting_is_refused_by_name_before_anything_starts(
    stack: Stack, name: str, value: str
) -> None:
    stack.launch(env={name: value})
    assert stack.process.wait(START_SECONDS) == 1
    assert stack.said.startswith(f"make up: {name} is wrong: ")
    assert len(stack.said.splitlines()) == 1
    assert not (stack.data_dir / "postgres").exists()


def test_with_both_addresses_given_it_starts_neither_store(stack: Stack, tmp_path: Path) -> None:
    with (
        EmbeddedPostgres(tmp_path / "pg", durable=False) as postgres,
        EmbeddedValkey(tmp_path / "vk") as valkey,
    ):
        given = {
            "DATABASE_URL": postgres.url,
            "DATABASE_ADMIN_URL": postgres.admin_url,
            "REDIS_URL": valkey.url,
        }
        stack.up(env=given)
        assert {name: stack.values()[name] for name in given} == given
        files = sorted(file.name for file in stack.data_dir.iterdir())
        assert files == ["client.env", "env", "lock", "secrets"]
        assert stack.get("/v1/keys/self")["role"] == "admin"
        assert stack.stop() == 0
