"""`make up` on real processes: what it starts, survives and leaves behind."""

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
import redis

from dev import env_file
from dev.stack import ROOT
from tests.e2e.harness.stack import ONE_OF_EACH, PLAIN, START_SECONDS
from tests.e2e.make_up.dev_stack import Stack, still_there
from tests.support.faults import LONG_ENOUGH, until

pytestmark = [pytest.mark.stacks, pytest.mark.toolbox]
MAKE_UP = ("make", "--old-file=.venv/installed", "up")
_PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"


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
    env = stack.values()
    _names_where_it_is_and_keeps_its_secrets(stack, env)

    # Operators need no more than the same DATA_DIR.
    here = {"DATA_DIR": str(stack.data_dir)}
    _creates_a_tenant("second", here)
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
    assert not stack.client_env.exists()

    # What is broken is told and keeps nobody waiting: operators' commands need the file then most.
    # And what the run before told this shell is not taken for stores of the user's own.
    stack.up(*MAKE_UP, env=env)
    assert stack.values() == env
    assert stack.get("/v1/keys/self")["role"] == "admin"
    until(lambda: "warning: degraded: audit (" in stack.said, START_SECONDS, why=stack)
    assert stack.get("/readyz")["degraded"] == ["audit"]
    _creates_a_tenant("third", here)
    listed = run(sys.executable, "-m", "app.manage", "tenant", "list", **here)
    names = [line.split()[-1] for line in listed.stdout.splitlines()]
    assert names == ["default", "second", "third"]

    _dies_with_make(stack)


def _names_where_it_is_and_keeps_its_secrets(stack: Stack, env: Mapping[str, str]) -> None:
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
    kept = [stack.env_file, stack.client_env, *stack.data_dir.rglob("secrets")]
    assert {file.stat().st_mode & 0o777 for file in kept} == {0o600}
    # A shell of an agent gets nothing with which it could reach the stores.
    assert env_file.read(stack.client_env) == {
        name: env[name] for name in ("BASE_URL", "SERVICE_BASE_URL", "SERVICE_API_KEY")
    }
    line = f'the client: pip install "record-service-client @ {env["BASE_URL"]}/client/'
    until(lambda: line in stack.said, START_SECONDS, why=stack)
    sourced = run("sh", "-c", '. "$0" && echo "$DATABASE_URL"', str(stack.env_file))
    assert sourced.stdout.strip() == env["DATABASE_URL"]

    with psycopg.connect(env["DATABASE_URL"]) as connection:
        who = connection.execute("SELECT current_user, pg_has_role('postgres', 'MEMBER')")
        assert who.fetchone() == ("record_service", False)


def _creates_a_tenant(name: str, here: Mapping[str, str]) -> None:
    made = run(sys.executable, "-m", "app.manage", "tenant", "create", name, **here)
    assert made.returncode == 0, made.stderr
    assert made.stdout.splitlines()[-1].startswith("key: svc_")


def _dies_with_make(stack: Stack) -> None:
    """When make itself is killed, nothing goes on without it."""
    whole = stack.all_of_it()
    stack.process.kill()
    until(lambda: still_there(whole) == [], START_SECONDS)


def _refuses_a_second_one(stack: Stack, second: Stack) -> None:
    """Hold a stack to refuse another in its folder."""
    second.launch()
    assert second.process.wait(START_SECONDS) == 1
    runner = next(pid for pid in stack.all_of_it() if "dev.up" in stack.name_of(pid))
    assert second.said == (
        f"make up: {stack.data_dir} is in use by another `make up` (process {runner})\n"
    )


def _break_the_audit_chain(admin_url: str) -> None:
    with psycopg.connect(admin_url) as connection:
        connection.execute(
            "INSERT INTO audit_breaks (tenant_id, subject, seq, reason, expected, found)"
            " VALUES (gen_random_uuid(), 'chain', 7, 'other_hash', 'one', 'another')"
        )


def test_killed_whole_or_in_part_it_leaves_no_process_and_comes_back_with_everything(
    stack: Stack,
) -> None:
    stack.up()
    env = stack.values()
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
    assert stack.values() == env
    assert stack.get("/v1/keys/self")["id"] == key
    with redis.Redis.from_url(env["REDIS_URL"]) as client:
        assert client.get("left") == b"behind"

    # All but the runner, from the youngest on: leaders, their children, stores.
    for pid in sorted(stack.all_of_it(), reverse=True):
        if pid != stack.process.pid:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def whole_again() -> bool:
        with suppress(OSError, ValueError):
            return stack.get("/readyz")["degraded"] == [] and bool(stack.get("/v1/keys/self"))
        return False

    until(whole_again, START_SECONDS, pause=0.02, why=stack)
    _refuses_a_database_of_a_newer_release(stack)


def _refuses_a_database_of_a_newer_release(stack: Stack) -> None:
    """Stop a stack, and hold the next one to refuse what a newer release left."""
    with psycopg.connect(stack.values()["DATABASE_ADMIN_URL"]) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    whole = stack.all_of_it()
    assert stack.stop() == 0
    assert still_there(whole) == []
    before = len(stack.said)
    stack.launch()
    assert stack.process.wait(START_SECONDS) != 0
    said = stack.said[before:].splitlines()
    assert len(said) == 1
    assert "newer than this release" in said[0]
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
        until(stack.env_file.exists, START_SECONDS, why=stack)
    assert one.values()["SERVICE_API_KEY"] != two.values()["SERVICE_API_KEY"]
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
            [str(programs / "python"), "-c", "import psycopg, granian, dev.up"],
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
    stack = make_stack(folder=folder)
    path = f"{folder / 'bin'}:{PLAIN['PATH']}"
    env = {"PATH": path, "HOME": str(folder), **ONE_OF_EACH}
    stack.up(*python, "-m", "dev.up", env=env, **options)
    ready = stack.get("/readyz")
    assert ready["degraded"] == [], ready
    assert stack.get("/v1/keys/self")["role"] == "admin"
    uids = {Path(f"/proc/{pid}").stat().st_uid for pid in stack.all_of_it()}
    assert uids == {options["user"]}
    assert stack.stop() == 0
