"""`make up` on real processes: what it starts, refuses, survives, and leaves behind."""

import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import psycopg
import pytest
import redis

from app.dev import env_file
from app.dev.stores.postgres import EmbeddedPostgres
from app.dev.stores.valkey import EmbeddedValkey
from tests.e2e.harness.stack import ONE_OF_EACH, PLAIN, START_SECONDS, remove_data
from tests.support.faults import LONG_ENOUGH
from tests.support.servers.ports import own_port

pytestmark = pytest.mark.stacks

ROOT = Path(__file__).resolve().parents[2]
UP = (sys.executable, "-m", "app.dev.up")
MAKE_UP = ("make", "--old-file=.venv/installed", "up")
_PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"


def until(
    condition: Callable[[], object], seconds: float = START_SECONDS, why: object = ""
) -> None:
    """Wait for a condition, with a deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, why or "it did not happen in time"
        time.sleep(0.02)


def processes() -> dict[int, tuple[int, str]]:
    """Return each living process's parent and start time, by process id."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, parent, *rest = (folder / "stat").read_text().rpartition(")")[2].split()
            if state != "Z":
                found[int(folder.name)] = (int(parent), rest[17])
    return found


class Stack:
    """One `make up`, in a folder of its own."""

    def __init__(self, data_dir: Path, port: int, said: Path) -> None:
        self.data_dir = data_dir
        self.port = port
        self.said_file = said
        self.process: subprocess.Popen[bytes]

    def start(self, *command: str, env: Mapping[str, str] | None = None, **options: object) -> None:
        told = {**PLAIN, "PORT": str(self.port), "DATA_DIR": str(self.data_dir), **(env or {})}
        if not command:
            told = {**ONE_OF_EACH, **told}
        with self.said_file.open("ab") as said:
            self.process = subprocess.Popen(
                command or UP,
                cwd=ROOT,
                env=told,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **options,  # type: ignore[call-overload]
            )

    def up(self, *command: str, env: Mapping[str, str] | None = None, **options: object) -> None:
        """Start it, and wait until it says that all is up."""
        self.start(*command, env=env, **options)
        until(lambda: self.env_file.exists() or self.process.poll() is not None, why=self)
        assert self.process.poll() is None, self

    @property
    def env_file(self) -> Path:
        return self.data_dir / "env"

    @property
    def env(self) -> dict[str, str]:
        return env_file.read(self.env_file)

    @property
    def said(self) -> str:
        return self.said_file.read_text("utf-8", "replace")

    def __repr__(self) -> str:
        return self.said

    def get(self, path: str) -> dict[str, object]:
        """GET a path with the root admin key, and return the JSON of a good answer."""
        request = urllib.request.Request(
            self.env["BASE_URL"] + path,
            headers={"Authorization": f"Bearer {self.env['SERVICE_API_KEY']}"},
        )
        with urllib.request.urlopen(request, timeout=LONG_ENOUGH) as answer:
            found: dict[str, object] = json.load(answer)
            return found

    def all_of_it(self) -> dict[int, str]:
        """Return every process of the stack with its start time, by process id."""
        table = processes()
        mine = {self.process.pid}
        grown = True
        while grown:
            more = {pid for pid, (parent, _) in table.items() if parent in mine} - mine
            mine |= more
            grown = bool(more)
        return {pid: table[pid][1] for pid in mine if pid in table}

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(START_SECONDS)

    def name_of(self, pid: int) -> str:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def still_there(those: Mapping[int, str]) -> list[int]:
    table = processes()
    return [pid for pid, born in those.items() if pid in table and table[pid][1] == born]


def gone(those: Mapping[int, str]) -> bool:
    return not still_there(those)


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
            until(partial(gone, whole))
        remove_data(stack.data_dir)


@pytest.fixture
def stack(make_stack: Callable[..., Stack]) -> Stack:
    return make_stack()


def run(*command: str, **env: str) -> "subprocess.CompletedProcess[str]":
    """Run a command of the project in the plain environment and what is added to it."""
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**PLAIN, **env},
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
        check=False,
    )


def test_it_comes_up_works_ends_cleanly_and_finds_everything_again(
    stack: Stack, make_stack: Callable[..., Stack]
) -> None:
    # As a user does it; what is installed is not to be checked again by this.
    stack.up(*MAKE_UP)
    env = stack.env
    assert list(env) == [
        "BASE_URL",
        "SERVICE_BASE_URL",
        "SERVICE_API_KEY",
        "DATABASE_URL",
        "REDIS_URL",
        "DATABASE_ADMIN_URL",
        "DATA_DIR",
        "WEBHOOK_ALLOWED_NETWORKS",
        "LOG_HEAD_URL",
    ]
    assert env["LOG_HEAD_URL"] == (stack.data_dir / "log-head").as_uri()
    assert env["BASE_URL"] == f"http://127.0.0.1:{stack.port}"
    kept = [stack.env_file, *stack.data_dir.rglob("secrets")]
    assert {file.stat().st_mode & 0o777 for file in kept} == {0o600}
    sourced = run("sh", "-c", '. "$0" && echo "$DATABASE_URL"', str(stack.env_file))
    assert sourced.stdout.strip() == env["DATABASE_URL"]

    with psycopg.connect(env["DATABASE_URL"]) as connection:
        who = connection.execute("SELECT current_user, pg_has_role('postgres', 'MEMBER')")
        assert who.fetchone() == ("record_service", False)

    # Operators need no more than the same DATA_DIR.
    here = {"DATA_DIR": str(stack.data_dir)}
    made = run(sys.executable, "-m", "app.manage", "tenant", "create", "second", **here)
    assert made.returncode == 0, made.stderr
    assert made.stdout.splitlines()[-1].startswith("key: svc_")
    rung = run("make", "--old-file=.venv/installed", "now", "NAME=sweep", **here)
    assert rung.returncode == 0, rung.stderr

    whole = stack.all_of_it()
    assert len(whole) > 10
    _refuses_a_second_one(stack, make_stack())
    stack.get("/healthz")
    assert stack.get("/readyz")["degraded"] == []
    assert stack.get("/v1/keys/self")["role"] == "admin"
    _break_the_audit_chain(env["DATABASE_ADMIN_URL"])
    stack.process.terminate()
    stack.process.wait(START_SECONDS)
    assert "up        | stopped" in stack.said
    assert still_there(whole) == []
    assert not stack.env_file.exists()

    # What is broken is told and keeps nobody waiting: operators' commands need the file then most.
    # And what the run before told this shell is not taken for stores of the user's own.
    stack.up(*MAKE_UP, env=env)
    assert stack.env == env
    assert stack.get("/v1/keys/self")["role"] == "admin"
    until(lambda: "warning: degraded: audit (" in stack.said, why=stack)
    assert stack.get("/readyz")["degraded"] == ["audit"]
    made = run(sys.executable, "-m", "app.manage", "tenant", "create", "third", **here)
    assert made.returncode == 0, made.stderr
    listed = run(sys.executable, "-m", "app.manage", "tenant", "list", **here)
    names = [line.split()[-1] for line in listed.stdout.splitlines()]
    assert names == ["default", "second", "third"]

    # When make itself is killed, nothing goes on without it.
    whole = stack.all_of_it()
    stack.process.kill()
    until(lambda: still_there(whole) == [])


def _refuses_a_second_one(stack: Stack, second: Stack) -> None:
    """Hold a stack to refuse another in its folder."""
    second.start()
    assert second.process.wait(START_SECONDS) == 1
    runner = next(pid for pid in stack.all_of_it() if "app.dev.up" in stack.name_of(pid))
    assert second.said == (
        f"make up: {stack.data_dir} is in use by another `make up` (process {runner})\n"
    )


def _break_the_audit_chain(admin_url: str) -> None:
    with psycopg.connect(admin_url) as connection:
        connection.execute(
            "INSERT INTO audit_breaks (tenant_id, subject, seq, reason, expected, found)"
            " VALUES (gen_random_uuid(), 'chain', 7, 'other_hash', 'one', 'another')"
        )


def test_killed_whole_or_in_part_it_leaves_nobody_and_comes_back_with_everything(
    stack: Stack,
) -> None:
    stack.up()
    env = stack.env
    key = stack.get("/v1/keys/self")["id"]
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
    assert stack.env == env
    assert stack.get("/v1/keys/self")["id"] == key
    with redis.Redis.from_url(env["REDIS_URL"]) as client:
        assert client.get("left") == b"behind"

    # All but the runner, from the youngest on: leaders, their children, keepers, stores.
    for pid in sorted(stack.all_of_it(), reverse=True):
        if pid != stack.process.pid:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def whole_again() -> bool:
        with suppress(OSError, ValueError):
            return stack.get("/readyz")["degraded"] == [] and bool(stack.get("/v1/keys/self"))
        return False

    until(whole_again, why=stack)
    _refuses_a_database_of_a_newer_release(stack)


def _refuses_a_database_of_a_newer_release(stack: Stack) -> None:
    """Stop a stack, and hold the next one to refuse what a newer release left."""
    with psycopg.connect(stack.env["DATABASE_ADMIN_URL"]) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    whole = stack.all_of_it()
    assert stack.stop() == 0
    assert still_there(whole) == []
    before = len(stack.said)
    stack.start()
    assert stack.process.wait(START_SECONDS) != 0
    said = stack.said[before:].splitlines()
    assert len(said) == 1
    assert "newer than this release" in said[0]
    assert still_there(whole) == []


def test_a_taken_port_is_refused_before_anything_starts(stack: Stack) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", stack.port))
        other.listen()
        stack.start()
        assert stack.process.wait(START_SECONDS) == 1
    assert stack.said == f"make up: port {stack.port} is taken: set PORT to a free one\n"
    assert not (stack.data_dir / "postgres").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "eight"),
        ("PORT", "65536"),
        ("MASTER_KEYS", "short"),
        ("BASE_URL", "records.example.com"),
        ("WEBHOOK_ALLOWED_NETWORKS", "127.0.0.1/33"),
        ("DATABASE_URL", "mysql://localhost/records"),
        ("REDIS_URL", "localhost:6379"),
    ],
)
def test_a_bad_setting_is_refused_by_name_before_anything_starts(
    stack: Stack, name: str, value: str
) -> None:
    stack.start(env={name: value})
    assert stack.process.wait(START_SECONDS) == 1
    assert stack.said.startswith(f"make up: {name} is wrong: ")
    assert len(stack.said.splitlines()) == 1
    assert not (stack.data_dir / "postgres").exists()


def test_a_folder_that_cannot_be_written_is_named(stack: Stack) -> None:
    # A file where the folder should be: that stops root as well.
    stack.data_dir.touch()
    stack.start()
    assert stack.process.wait(START_SECONDS) == 1
    assert len(stack.said.splitlines()) == 1
    assert f"cannot write to {stack.data_dir}" in stack.said
    assert "DATA_DIR" in stack.said


def test_a_damaged_file_of_secrets_is_named(stack: Stack) -> None:
    stack.data_dir.mkdir()
    (stack.data_dir / "secrets").write_text("MASTER_KEYS='half\n")
    stack.start()
    assert stack.process.wait(START_SECONDS) == 1
    assert stack.said == f"make up: {stack.data_dir}/secrets, line 1: this is not NAME=value\n"


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
        assert {name: stack.env[name] for name in given} == given
        assert sorted(file.name for file in stack.data_dir.iterdir()) == ["env", "lock", "secrets"]
        assert stack.get("/v1/keys/self")["role"] == "admin"
        assert stack.stop() == 0


def test_stopped_at_any_moment_of_its_start_it_comes_up_then_beside_another(
    make_stack: Callable[..., Stack],
) -> None:
    one, two = make_stack("one"), make_stack("two with a space")
    for seconds in (0.3, 1.5):
        one.start()
        with suppress(subprocess.TimeoutExpired):
            one.process.wait(seconds)
        whole = one.all_of_it()
        # Before Python has come to its first line, the signal's own meaning holds.
        assert one.stop() in (0, -signal.SIGTERM)
        assert still_there(whole) == []
    one.start()
    two.start()
    for stack in (one, two):
        until(stack.env_file.exists, why=stack)
    assert one.env["SERVICE_API_KEY"] != two.env["SERVICE_API_KEY"]
    assert one.get("/v1/keys/self")["role"] == "admin"
    assert one.stop() == 0
    assert two.get("/readyz")["degraded"] == []
    assert two.get("/v1/keys/self")["role"] == "admin"
    assert two.stop() == 0


@pytest.fixture
def ordinary_user(tmp_path: Path) -> Iterator[tuple[Path, list[str], dict[str, object]]]:
    """Return a folder of the user `nobody`, how to start Python as him, and options for that."""
    if os.geteuid() != 0:
        pytest.skip("this run is by an ordinary user already: every other test here shows it")
    nobody = pwd.getpwnam("nobody")
    options = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    with tempfile.TemporaryDirectory(prefix="ordinary-") as name:
        folder = Path(name)
        python = _python_within_reach(folder, options)
        if python is None:
            pytest.skip("the user `nobody` can reach neither this checkout nor a Python for it")
        shutil.chown(folder, nobody.pw_uid, nobody.pw_gid)
        yield folder, [python], options


def _python_within_reach(folder: Path, options: dict[str, object]) -> str | None:
    """Return a Python that the user can run with this checkout's packages, or None.

    The checkout's own may be a link into another user's home; then a copy of that one will do. The
    programs that the Procfile names stand beside it.
    """
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    programs = folder / "bin"
    programs.mkdir()
    folder.chmod(0o755)
    copy = folder / "copy"
    for python in (Path(sys.executable), copy / "bin" / _PYTHON):
        if python.is_relative_to(copy):
            _copy_python(copy)
        run_python = f'PYTHONPATH="{packages}" LD_LIBRARY_PATH="{copy}/lib" exec {python}'
        for name in ("python", "granian", "dramatiq"):
            module = "" if name == "python" else f" -m {name}"
            (programs / name).write_text(f'#!/bin/sh\n{run_python}{module} "$@"\n')
            (programs / name).chmod(0o755)
        tried = subprocess.run(
            [str(programs / "python"), "-c", "import psycopg, granian, app.dev.up"],
            cwd=ROOT,
            capture_output=True,
            check=False,
            **options,  # type: ignore[call-overload]
        )
        if tried.returncode == 0:
            return str(programs / "python")
    return None


def _copy_python(home: Path) -> None:
    """Copy the interpreter and its standard library."""
    base = Path(sys.base_prefix)
    unneeded = shutil.ignore_patterns("test", "site-packages", "__pycache__", "config-*", "idlelib")
    shutil.copytree(base / "lib" / _PYTHON, home / "lib" / _PYTHON, ignore=unneeded)
    (home / "bin").mkdir()
    shutil.copy(base / "bin" / _PYTHON, home / "bin" / _PYTHON)
    for library in (base / "lib").glob("libpython*"):
        shutil.copy(library, home / "lib")


def test_an_ordinary_user_needs_no_more(
    make_stack: Callable[..., Stack],
    ordinary_user: tuple[Path, list[str], dict[str, object]],
) -> None:
    folder, python, options = ordinary_user
    stack = make_stack()
    stack.data_dir = folder / "data"
    path = f"{folder / 'bin'}:{PLAIN['PATH']}"
    stack.up(*python, "-m", "app.dev.up", env={"PATH": path, "HOME": str(folder)}, **options)
    ready = stack.get("/readyz")
    assert ready["degraded"] == [], ready
    assert stack.get("/v1/keys/self")["role"] == "admin"
    uids = {Path(f"/proc/{pid}").stat().st_uid for pid in stack.all_of_it()}
    assert uids == {options["user"]}
    assert stack.stop() == 0
