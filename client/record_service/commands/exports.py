"""A record's bundle in several formats, and its evidence pack."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, BinaryIO, Callable

import click
import requests

from record_service import verifier
from record_service.commands.base import Command, No, Run, at, pass_run
from record_service.errors import RecordsError, Unreachable
from record_service.output import plain, standard_output

_PIECE = 1 << 16
_TO_STDOUT = "-"
_file = click.option("-o", "--output", "to", metavar="FILE", help="Where to; else standard output.")


@contextmanager
def saving(to: str) -> Iterator[BinaryIO]:
    """Yield a file to write to; it is there under its name once it is whole. `-` is stdout.

    A device or a pipe is written to, and a link stays one.
    """
    if to == _TO_STDOUT:
        out = standard_output()
        yield out
        out.flush()
        return
    path = Path(os.path.realpath(to))
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    # A file whose name ends so was not finished.
    scratch = path.with_name(f"{path.name}.part")
    try:
        with scratch.open("wb") as file:
            yield file
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def copy(answer: requests.Response, file: BinaryIO) -> str:
    """Write an answer's body to a file; return its SHA-256 in hex. Raises `Unreachable`."""
    digest = hashlib.sha256()
    for piece in answer.iter_content(_PIECE):
        digest.update(piece)
        file.write(piece)
    # With urllib3 before 2.0, which requests takes as well, a body that was cut is no error.
    length = answer.headers.get("Content-Length", "").partition(",")[0]
    if length.isdigit() and answer.raw.tell() < int(length):
        raise Unreachable("The connection broke before the end of the answer.")
    return digest.hexdigest()


@click.command(cls=Command)
@click.argument("record_id")
@_file
@pass_run
def bundle(run: Run, record_id: str, to: str | None) -> None:
    """Read the exact bytes that were signed."""
    _export(run, record_id, "bundle", to)


@click.command(cls=Command)
@click.argument("record_id")
@_file
@pass_run
def prov(run: Run, record_id: str, to: str | None) -> None:
    """Read a record as W3C PROV-JSON."""
    _export(run, record_id, "prov.json", to)


@click.command(cls=Command)
@click.argument("record_id")
@click.option("--logs", is_flag=True, help="LogsData in place of TracesData.")
@_file
@pass_run
def otlp(run: Run, record_id: str, logs: bool, to: str | None) -> None:
    """Read a record as OpenTelemetry traces, or logs (OTLP/JSON)."""
    _export(run, record_id, "otlp-logs.json" if logs else "otlp-traces.json", to)


def _export(run: Run, record_id: str, name: str, to: str | None) -> None:
    path = at("/v1/records/{}/", record_id) + name
    with run.client.download(path) as answer, saving(to or _TO_STDOUT) as file:
        copy(answer, file)


@dataclass(frozen=True)
class Wanted:
    """Where a pack is saved, and what it is held against."""

    to: str
    verify: bool
    keys: tuple[str, ...]
    policy: str | None
    wait: int


def wanted(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `Wanted`."""

    @wraps(command)
    def run(
        *given: Any,
        to: str,
        verify: bool,
        keys: tuple[str, ...],
        policy: str | None,
        wait: int,
        **others: Any,
    ) -> None:
        if verify and to == _TO_STDOUT:
            raise click.UsageError("--verify needs a file: -o FILE.")
        command(*given, Wanted(to, verify, keys, policy, wait), **others)

    for option in reversed(_OPTIONS):
        run = option(run)
    return run


_OPTIONS = (
    click.option("-o", "--output", "to", required=True, metavar="FILE", help="Where to."),
    click.option("--verify", is_flag=True, help="Check it with this package's own verify.py."),
    click.option("--key", "keys", multiple=True, metavar="FILE", help="Public keys that you kept."),
    click.option(
        "--policy", metavar="FILE", help="The log's policy (C2SP tlog-policy) that you kept."
    ),
    click.option("--wait", type=click.IntRange(1), default=120, show_default=True, help="Seconds."),
)


@click.command(cls=Command)
@click.argument("record_id")
@wanted
@pass_run
def evidence(run: Run, options: Wanted, record_id: str) -> None:
    """Save all that proves a record, in one ZIP; it is built if it is not there.

    --verify holds it against --key and --policy, or else against what the service publishes now.
    """
    save_evidence(run, at("/v1/records/{}/evidence.zip", record_id), "record", options)


def save_evidence(run: Run, path: str, what: str, options: Wanted) -> None:
    """Save the pack at a path, and verify it if that is wanted. Raises `No` if it does not hold."""
    to = options.to
    sha256 = _save_pack(run, path, to, time.monotonic() + options.wait)
    told: dict[str, object] = {"file": to, "sha256": sha256}
    if not options.verify:
        run.out.item(told) if to != _TO_STDOUT else None
        return
    found = _verified(run, to, options.keys, options.policy)
    run.out.aside(_tell, run, told, found)
    if found.code != 0:
        raise No(f"{to} does not prove the {what}.")


def _tell(run: Run, told: dict[str, object], found: verifier.Verdict) -> None:
    if run.out.json:
        run.out.document({**told, "valid": found.code == 0, "checks": found.checks})
        return
    for line in found.lines:
        run.out.text(plain(line))


def _save_pack(run: Run, path: str, to: str, give_up_at: float) -> str:
    while True:
        with run.client.download(path) as answer:
            if answer.status_code == 200:
                with saving(to) as file:
                    return copy(answer, file)
            wait = float(answer.headers.get("Retry-After", "1"))
        if time.monotonic() + wait > give_up_at:
            raise Unreachable("The pack is still being built: --wait longer, or come again.")
        time.sleep(wait)


def _verified(run: Run, pack: str, keys: tuple[str, ...], policy: str | None) -> verifier.Verdict:
    with tempfile.TemporaryDirectory() as folder:
        if not keys:
            keys = (str(Path(folder) / "keys.json"),)
            Path(keys[0]).write_bytes(_published(run, "/.well-known/jwks.json"))
        if policy is None:
            policy = str(Path(folder) / "policy")
            log = _published(run, "/v1/log/key").strip()
            Path(policy).write_bytes(b"log " + log + b"\nquorum none\n")
        given = [argument for key in keys for argument in ("--key", key)]
        return verifier.verify(pack, *given, "--policy", policy)


def _published(run: Run, path: str) -> bytes:
    with run.client.download(path) as answer:
        content: bytes = answer.content
    if not content:
        raise RecordsError(f"{path} is empty.")
    return content
