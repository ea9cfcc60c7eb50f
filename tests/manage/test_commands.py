"""Operators' commands as they type them: where the database is away, and odd terminals."""

import os
import subprocess
import sys
from pathlib import Path

from app.core import tenants
from app.database import Database
from tests.support.secrets import MASTER_KEYS
from tests.support.servers.ports import own_port

ROOT = Path(__file__).resolve().parents[2]


def manage(
    environ: dict[str, str], *arguments: str, stdout: int = subprocess.PIPE
) -> "subprocess.CompletedProcess[bytes]":
    command = [sys.executable, "-m", "app.manage", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environ, stdout=stdout, stderr=subprocess.PIPE, check=False
    )


def test_a_release_says_why_it_does_not_reach_the_database(environ: dict[str, str]) -> None:
    address = f"postgresql://somebody@127.0.0.1:{own_port()}/records"
    done = manage({**environ, "DATABASE_URL": address, "DATABASE_ADMIN_URL": address}, "migrate")
    assert done.returncode == 1
    assert b"the database does not answer" in done.stderr
    assert b"refused" in done.stderr.lower()
    assert b"Traceback" not in done.stderr


def test_a_name_that_an_encoding_lacks_is_written_by_its_numbers(
    environ: dict[str, str], database: Database
) -> None:
    tenants.create(database, MASTER_KEYS, "Zażółć")
    done = manage({**environ, "PYTHONIOENCODING": "latin-1"}, "tenant", "list")
    assert (done.returncode, done.stderr) == (0, b"")
    assert "Zażółć".encode("latin-1", "backslashreplace") in done.stdout


def test_a_list_whose_reader_has_gone_is_no_traceback(
    environ: dict[str, str], database: Database
) -> None:
    tenants.create(database, MASTER_KEYS, "Ada")
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = manage(environ, "tenant", "list", stdout=write_end)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_command_for_operators_installs_nothing() -> None:
    wanted = ["make", "--dry-run", "--always-make", "now", "NAME=sweep"]
    done = subprocess.run(wanted, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "scheduler now" in done.stdout
    assert "uv" not in done.stdout.split()
    assert "sync" not in done.stdout
