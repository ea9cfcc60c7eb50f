"""A record's bundle in several formats, its evidence pack, and signed exports of a period."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from record_service import verifier
from record_service.client import Json
from record_service.commands.base import Command, Decorated, Group, No, Run, at, how_many, pass_run
from record_service.errors import RecordsError
from record_service.output import plain, standard_output

if TYPE_CHECKING:
    import httpx2

_PIECE = 1 << 16
_TO_STDOUT = "-"
_POLL_SECONDS = 1.0
_EXPORTS = {
    "ID": "id",
    "STATE": "state",
    "SINCE": "since",
    "UNTIL": "until",
    "RECORDS": "records",
    "SIZE": "size",
    "EXPIRES": "expires_at",
}
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


def copy(answer: httpx2.Response, file: BinaryIO) -> str:
    """Write an answer's body to a file; return its SHA-256 in hex."""
    digest = hashlib.sha256()
    for piece in answer.iter_bytes(_PIECE):
        digest.update(piece)
        file.write(piece)
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


def proof_options(command: Decorated) -> Decorated:
    """Give a command what `save_proof` takes."""
    kept = "The log's policy (C2SP tlog-policy) that you kept."
    for option in (
        click.option("--policy", metavar="FILE", help=kept),
        click.option("--key", "keys", multiple=True, metavar="FILE", help="Public keys you kept."),
        click.option("--verify", is_flag=True, help="Check it with this package's own verify.py."),
        click.option("-o", "--output", "to", required=True, metavar="FILE", help="Where to."),
    ):
        command = option(command)
    return command


def wait_option(command: Decorated) -> Decorated:
    """Give a command `--wait`."""
    limit = click.IntRange(1)
    return click.option("--wait", type=limit, default=120, show_default=True, help="Seconds.")(
        command
    )


@click.command(cls=Command)
@click.argument("record_id")
@proof_options
@wait_option
@pass_run
def evidence(run: Run, /, record_id: str, **how: Any) -> None:
    """Save all that proves a record, in one ZIP; it is built if it is not there.

    --verify holds it against --key and --policy, or else against what the service publishes now.
    """
    save_proof(run, at("/v1/records/{}/evidence.zip", record_id), **how)


def save_proof(
    run: Run,
    path: str,
    *before: str,
    to: str,
    verify: bool,
    keys: tuple[str, ...],
    policy: str | None,
    wait: int | None = None,
) -> None:
    """Save what proves something, and verify it if asked; `before` is what verify.py is told first.

    Raises `No` where it does not prove what it is about.
    """
    if verify and to == _TO_STDOUT:
        raise click.UsageError("--verify needs a file: -o FILE.")
    with run.client.download(path, until_ready=wait) as answer, saving(to) as file:
        told: dict[str, object] = {"file": to, "sha256": copy(answer, file)}
    if not verify:
        run.out.item(told) if to != _TO_STDOUT else None
        return
    found = _verified(run, to, keys, policy, *before)
    run.out.aside(_tell, run, told, found)
    if found.code != 0:
        raise No(f"{to} does not prove what it is about.")


def _tell(run: Run, told: dict[str, object], found: verifier.Verdict) -> None:
    if run.out.json:
        run.out.document({**told, "valid": found.code == 0, "checks": found.checks})
        return
    for line in found.lines:
        run.out.text(plain(line))


def _verified(
    run: Run, pack: str, keys: tuple[str, ...], policy: str | None, *before: str
) -> verifier.Verdict:
    """Run verify.py over a file; `before` are its first arguments."""
    with tempfile.TemporaryDirectory() as folder:
        if not keys:
            keys = (str(Path(folder) / "keys.json"),)
            Path(keys[0]).write_bytes(_published(run, "/.well-known/jwks.json"))
        if policy is None:
            policy = str(Path(folder) / "policy")
            log = _published(run, "/v1/log/key").strip()
            Path(policy).write_bytes(b"log " + log + b"\nquorum none\n")
        given = [argument for key in keys for argument in ("--key", key)]
        return verifier.verify(*before, pack, *given, "--policy", policy)


def _published(run: Run, path: str) -> bytes:
    with run.client.download(path) as answer:
        content = answer.read()
    if not content:
        raise RecordsError(f"{path} is empty.")
    return content


@click.group(cls=Group)
def exports() -> None:
    """Signed exports of all records of a period."""


@exports.command("create")
@click.option("--since", required=True, metavar="TIME", help="RFC 3339; records from then on.")
@click.option("--until", required=True, metavar="TIME", help="Up to then; a moment that passed.")
@click.option("--agent", "agent_id", metavar="ID", help="Of this agent alone.")
@click.option("--wait", "waiting", is_flag=True, help="Follow it; 1 if it cannot be made.")
@pass_run
def create(run: Run, since: str, until: str, agent_id: str | None, waiting: bool) -> None:
    """Order an export."""
    body = {"since": since, "until": until, "agent_id": agent_id}
    made = run.client.post("/v1/exports", body)
    run.out.item(_awaited(run, made["id"]) if waiting else made)


def _awaited(run: Run, export_id: str) -> Json:
    while True:
        found = run.client.get(at("/v1/exports/{}", export_id))
        if found["state"] == "ready":
            return found
        if found["state"] != "making":
            raise No(f"{export_id} is {found['state']}{': ' + (found['error'] or '')}.")
        time.sleep(_POLL_SECONDS)


@exports.command("list")
@how_many
@pass_run
def list_exports(run: Run, limit: int | None) -> None:
    """List exports, newest first."""
    run.list("/v1/exports", _EXPORTS, limit)


@exports.command("show")
@click.argument("export_id")
@pass_run
def show(run: Run, export_id: str) -> None:
    """Show an export: its state and its totals."""
    run.out.item(run.client.get(at("/v1/exports/{}", export_id)))


@exports.command("download")
@click.argument("export_id")
@click.option("--kept", metavar="FILE", help="SHA-256 of bundles that you kept: all must be there.")
@proof_options
@pass_run
def download(run: Run, /, export_id: str, kept: str | None, **how: Any) -> None:
    """Save an export once it is ready.

    --verify holds it against --key and --policy, or else against what the service publishes now.
    """
    _awaited(run, export_id)
    before = ("export", *(("--kept", kept) if kept else ()))
    save_proof(run, at("/v1/exports/{}/export.ndjson", export_id), *before, **how)


@exports.command("delete")
@click.argument("export_id")
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_run
def delete(run: Run, export_id: str, yes: bool) -> None:
    """Delete an export's file; what was signed stays readable."""
    run.confirm(f"Delete the file of {export_id}?", yes)
    run.client.delete(at("/v1/exports/{}", export_id))
