"""Operators' commands as they type them: where the database is away, and odd terminals."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.core import signing_keys, tenants
from app.core.signing_keys import Purpose
from app.database import Database
from app.evidence import signing_certificates
from tests.support.evidence.signers import LEAF, Authority
from tests.support.secrets import MASTER_KEYS
from tests.support.servers.ports import own_port
from tests.unit.verify import packs

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


def test_a_certificate_request_goes_to_an_authority_and_its_chain_into_the_settings(
    environ: dict[str, str], database: Database, tmp_path: Path
) -> None:
    subject = ["--organization", "Beispiel GmbH", "--country", "DE"]
    asked = manage(environ, "signing-key", "csr", *subject)
    assert (asked.returncode, asked.stderr) == (0, b"")
    with database.across_tenants() as session:
        key = signing_keys.current(session, MASTER_KEYS, Purpose.BUNDLE)
    by = Authority(tmp_path / "ca")
    for name, request, key_id in (
        ("ours", asked.stdout, key.public.id),
        ("theirs", signing_certificates.request(packs.KEY, {"common_name": "x"}), ""),
    ):
        leaf = by.sign(name, request, LEAF)
        chain = (leaf + by.middle.read_bytes() + by.root.read_bytes()).decode()
        done = manage({**environ, "SIGNING_CERTIFICATES": chain}, "migrate")
        assert (done.returncode == 0) == bool(key_id), done.stderr
        told = b"SIGNING_CERTIFICATES has one of the key " + packs.KEY.public.id.encode()
        assert (told in done.stderr) == (not key_id)
        assert key.public.id.encode() in done.stderr or key_id


@pytest.mark.parametrize(
    ("subject", "said"),
    [
        ([], b"--organization, or --common-name"),
        (["--organization", "x", "--country", "Germany"], b"country: "),
        (["--organization", "x\ny"], b"one line"),
        (["--organization", "x", "--key", "0" * 16], b"signing-key list"),
    ],
)
def test_a_request_that_cannot_be_made_says_why(
    environ: dict[str, str], subject: list[str], said: bytes
) -> None:
    done = manage(environ, "signing-key", "csr", *subject)
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_command_for_operators_installs_nothing() -> None:
    wanted = ["make", "--dry-run", "--always-make", "now", "NAME=sweep"]
    done = subprocess.run(wanted, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "scheduler now" in done.stdout
    assert "uv" not in done.stdout.split()
    assert "sync" not in done.stdout
