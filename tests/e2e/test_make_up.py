"""`make up` on real processes: what it starts, survives, refuses and leaves behind."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
import redis

from dev import env_file, processes
from dev.data_dir import OWNED_BY
from dev.stack import ROOT
from dev.stack import Stack as DevStack
from dev.stores.postgres import EmbeddedPostgres
from dev.stores.valkey import EmbeddedValkey
from tests.e2e.harness.stack import ONE_OF_EACH, PLAIN, START_SECONDS, Caller, remove_data
from tests.support.faults import LONG_ENOUGH, until
from tests.support.programs.processes import family
from tests.support.servers.ports import own_port

pytestmark = [pytest.mark.stacks, pytest.mark.toolbox]
MAKE_UP = ("make", "--old-file=.venv/installed", "up")


class Stack(DevStack):
    """One `make up`, in a folder of its own."""

    def __init__(self, data_dir: Path, said: Path) -> None:
        self.port = own_port()
        super().__init__({**PLAIN, "PORT": str(self.port), "DATA_DIR": str(data_dir)}, said)
        self.data_dir = data_dir

    def launch(self, *command: str, env: Mapping[str, str] | None = None) -> None:
        """Start it, as `command` or otherwise directly, without waiting for anything."""
        told = {**({} if command else ONE_OF_EACH), **self._environ, **(env or {})}
        with self.log.open("ab") as said:
            self.process = subprocess.Popen(
                command or (sys.executable, "-m", "dev.up"),
                cwd=ROOT,
                env=told,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def up(self, *command: str, env: Mapping[str, str] | None = None) -> None:
        """Start it, and wait until it says that all is up."""
        self.launch(*command, env=env)
        ended = self.process.poll
        until(lambda: self.env_file.exists() or ended() is not None, START_SECONDS, why=self)
        assert ended() is None, self

    @property
    def said(self) -> str:
        return self.log.read_text("utf-8", "replace")

    def __repr__(self) -> str:
        return self.said

    @property
    def root(self) -> Caller:
        """The holder of the root admin key."""
        return Caller(self.values()["BASE_URL"], self.values()["SERVICE_API_KEY"])

    def works(self) -> bool:
        """Say whether everything is in order, and the root key an administrator's."""
        with suppress(OSError, AssertionError, KeyError):
            ready, key = self.root.get("/readyz"), self.root.get("/v1/keys/self")
            return (ready["degraded"], key["role"]) == ([], "admin")
        return False

    def all_of_it(self) -> dict[int, str]:
        """Return every process of the stack with its start time, by process id."""
        return {pid: _born(pid) for pid in family(self.process.pid)}


def _born(pid: int) -> str:
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state == "Z" else rest[18]


def still_there(those: Mapping[int, str]) -> list[int]:
    """Return which processes go on; a number may be another's by now."""
    return [pid for pid, born in those.items() if born and _born(pid) == born]


@pytest.fixture
def make_stack(tmp_path: Path) -> Iterator[Callable[..., Stack]]:
    """Return a maker of stacks; whatever they left is removed after the test."""
    made: list[Stack] = []

    def make(name: str = "data") -> Stack:
        made.append(Stack(tmp_path / name, tmp_path / f"{name}.{len(made)}.said"))
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


def run(*command: str, **env: str) -> str:
    """Run a command of the project in the plain environment and what is added; return its words."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**PLAIN, **env},
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_comes_up_works_ends_cleanly_and_finds_everything_again(
    stack: Stack, make_stack: Callable[..., Stack]
) -> None:
    # As a user does it; what is installed is not to be checked again by this.
    stack.up(*MAKE_UP)
    env = stack.values()
    _names_where_it_is_and_keeps_its_secrets(stack, env)

    # Operators need no more than the same DATA_DIR.
    here = {"DATA_DIR": str(stack.data_dir)}
    tenant = (sys.executable, "-m", "app.manage", "tenant")
    assert run(*tenant, "create", "second", **here).splitlines()[-1].startswith("key: svc_")
    run("make", "--old-file=.venv/installed", "now", "NAME=sweep", **here)
    whole = stack.all_of_it()
    assert len(whole) > 10
    second = make_stack()
    second.launch()
    assert second.process.wait(START_SECONDS) == 1
    assert f"make up: {stack.data_dir} is in use by another `make up` (process " in second.said
    assert stack.works()
    with psycopg.connect(env["DATABASE_ADMIN_URL"]) as connection:
        connection.execute(
            "INSERT INTO audit_breaks (tenant_id, subject, seq, reason, expected, found)"
            " VALUES (gen_random_uuid(), 'chain', 7, 'other_hash', 'one', 'another')"
        )
    stack.process.terminate()
    stack.process.wait(START_SECONDS)
    assert "up        | stopped" in stack.said
    assert still_there(whole) == []
    assert not stack.env_file.exists()
    assert not stack.client_env.exists()

    # What is broken is told and keeps nobody waiting: operators' commands need the file then most.
    # And what the run before told this shell is not taken for stores of the user's own.
    stack.up(*MAKE_UP, env=env)
    assert stack.values() == env
    until(lambda: "warning: degraded: audit (" in stack.said, START_SECONDS, why=stack)
    assert stack.root.get("/readyz")["degraded"] == ["audit"]
    names = [line.split()[-1] for line in run(*tenant, "list", **here).splitlines()]
    assert names == ["default", "second"]

    # When make itself is killed, nothing goes on without it.
    whole = stack.all_of_it()
    stack.process.kill()
    until(lambda: still_there(whole) == [], START_SECONDS)


def _names_where_it_is_and_keeps_its_secrets(stack: Stack, env: Mapping[str, str]) -> None:
    for_clients = ["BASE_URL", "SERVICE_BASE_URL", "SERVICE_API_KEY"]
    stores = ["DATABASE_URL", "REDIS_URL", "DATABASE_ADMIN_URL"]
    others = ["DATA_DIR", "WEBHOOK_ALLOWED_NETWORKS", "LOG_HEAD_URL"]
    assert list(env) == [*for_clients, *stores, *others]
    assert env["LOG_HEAD_URL"] == (stack.data_dir / "log-head").as_uri()
    assert env["BASE_URL"] == f"http://127.0.0.1:{stack.port}"
    kept = [stack.env_file, stack.client_env, *stack.data_dir.rglob("secrets")]
    assert {file.stat().st_mode & 0o777 for file in kept} == {0o600}
    # A shell of an agent gets nothing with which it could reach the stores.
    assert env_file.read(stack.client_env) == {name: env[name] for name in for_clients}
    line = f'the client: pip install "record-service-client @ {env["BASE_URL"]}/client/'
    until(lambda: line in stack.said, START_SECONDS, why=stack)
    sourced = run("sh", "-c", '. "$0" && echo "$DATABASE_URL"', str(stack.env_file))
    assert sourced.strip() == env["DATABASE_URL"]
    with psycopg.connect(env["DATABASE_URL"]) as connection:
        who = connection.execute("SELECT current_user, pg_has_role('postgres', 'MEMBER')")
        assert who.fetchone() == ("record_service", False)


def test_killed_whole_or_in_part_it_leaves_no_process_and_comes_back_with_everything(
    stack: Stack,
) -> None:
    stack.up()
    env, key = stack.values(), stack.root.get("/v1/keys/self")["id"]
    with redis.Redis.from_url(env["REDIS_URL"], socket_timeout=LONG_ENOUGH) as client:
        client.set("left", "behind")
        # Valkey may answer before it writes, while an earlier fsync of its file is under way.
        assert client.waitaof(1, 0, 0) == [1, 0]
    whole = stack.all_of_it()
    stack.process.kill()
    stack.process.wait()

    # At once, while what was killed may still be going.
    stack.env_file.unlink()
    stack.up()
    assert still_there(whole) == []
    assert stack.values() == env
    assert stack.root.get("/v1/keys/self")["id"] == key
    with redis.Redis.from_url(env["REDIS_URL"]) as client:
        assert client.get("left") == b"behind"

    # All but the runner, from the youngest on: leaders, their children, stores.
    for pid in sorted(stack.all_of_it(), reverse=True):
        if pid != stack.process.pid:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    until(stack.works, START_SECONDS, pause=0.02, why=stack)

    # What a newer release left is refused.
    with psycopg.connect(env["DATABASE_ADMIN_URL"]) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    whole = stack.all_of_it()
    assert stack.stop() == 0
    before = len(stack.said)
    stack.launch()
    assert stack.process.wait(START_SECONDS) != 0
    (said,) = stack.said[before:].splitlines()
    assert "newer than this release" in said
    assert still_there(whole) == []


def test_stopped_at_any_moment_of_its_start_it_comes_up_then_beside_another(
    make_stack: Callable[..., Stack],
) -> None:
    one, two = make_stack("one"), make_stack("two with a space")
    for seconds in (0.3, 1.5):
        one.launch()
        with suppress(subprocess.TimeoutExpired):
            one.process.wait(seconds)
        whole = one.all_of_it()
        # Before Python has come to its first line, the signal's own meaning holds.
        assert one.stop() in (0, -signal.SIGTERM)
        assert still_there(whole) == []
    one.launch()
    two.launch()
    for stack in (one, two):
        until(stack.works, START_SECONDS, why=stack)
    assert one.values()["SERVICE_API_KEY"] != two.values()["SERVICE_API_KEY"]
    assert one.stop() == 0
    assert two.works()
    assert two.stop() == 0


def test_a_taken_port_is_refused_before_anything_starts(stack: Stack) -> None:
    with socket.create_server(("127.0.0.1", stack.port)):
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
    (said,) = stack.said.splitlines()
    assert said.startswith(f"make up: {name} is wrong: ")
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
        assert given.items() <= stack.values().items()
        files = sorted(file.name for file in stack.data_dir.iterdir())
        assert files == ["client.env", "env", "lock", "secrets"]
        assert stack.root.get("/v1/keys/self")["role"] == "admin"
        assert stack.stop() == 0
