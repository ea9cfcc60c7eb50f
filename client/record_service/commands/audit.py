"""The audit chain: listed, verified, exported."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from record_service import verifier
from record_service.commands.base import Group, No, Run, how_many, pass_run, since_until
from record_service.commands.exports import copy, saving
from record_service.errors import Conflict, Unreachable
from record_service.output import plain

_ENTRIES = {
    "SEQ": "seq",
    "AT": "at",
    "ACTION": "action",
    "OUTCOME": "outcome",
    "ACTOR": "actor.id",
    "TARGET": "target.id",
    "FROM": "origin",
}
# Conflicts that are a verdict on the chain or its log.
_BROKEN = frozenset({"audit-chain-broken", "log-rolled-back", "log-damaged", "log-head-lost"})
_NDJSON = "application/x-ndjson"
# The last line is shorter.
_PIECE = 1 << 16


@click.group(cls=Group)
def audit() -> None:
    """Who did what: a chain of entries that cannot be changed unseen."""


@audit.command("list")
@click.option("--actor", metavar="ID", help="The key, or other actor.")
@click.option("--target", metavar="ID", help="The object.")
@click.option("--action", metavar="BEGIN", help="How it begins, such as webhook.create.")
@click.option("--outcome", type=click.Choice(["success", "refused", "failed"]))
@click.option("--order", type=click.Choice(["asc", "desc"]))
@since_until
@how_many
@pass_run
def list_entries(run: Run, /, limit: int | None, **filters: str | None) -> None:
    """List entries, newest first."""
    run.list("/v1/audit", _ENTRIES, limit, **filters)


@audit.command("verify")
@click.option("--since-anchor", is_flag=True, help="Only what came after the newest anchor.")
@click.option("--full", is_flag=True, help="Every timestamp and cosignature, not the newest.")
@click.option("--head", metavar="SEQ:HASH", help="A head that you kept.")
@click.option("--chain", metavar="HASH", help="The chain's name that you kept.")
@click.option("--anchors", metavar="FILE", help="Of an export: its anchors, as exported.")
@click.option("--wait", type=click.IntRange(1), default=600, show_default=True, help="Seconds.")
@click.argument("file", required=False)
@pass_run
def verify(
    run: Run,
    since_anchor: bool,
    full: bool,
    head: str | None,
    chain: str | None,
    anchors: str | None,
    wait: int,
    file: str | None,
) -> None:
    """Have every hash recomputed; ends with 1 if the chain is broken.

    FILE is an export, which is checked here, by this package's own verify.py, without the service.
    """
    if file is not None:
        given = {"--head": head, "--chain": chain, "--anchors": anchors}
        _check(run, file, [part for pair in given.items() if pair[1] for part in pair if part])
        return
    seq, _, digest = (head or "").partition(":")
    query = {
        "since": "anchor" if since_anchor else None,
        "full": "1" if full else None,
        "seq": seq or None,
        "hash": digest or None,
        "chain": chain,
    }
    try:
        run.out.item(_verified(run, query, time.monotonic() + wait))
    except Conflict as conflict:
        if conflict.slug not in _BROKEN:
            raise
        if run.out.json:
            run.out.aside(run.out.document, conflict.body)
        raise No(str(conflict)) from None


def _verified(run: Run, query: dict[str, Any], give_up_at: float) -> dict[str, Any]:
    """Return the report; what takes long is done by a job, whose progress it is."""
    with run.client.download("/v1/audit/verify", **query) as answer:
        answer.read()
        body: dict[str, Any] = answer.json()
        if answer.status_code == 200:
            return body
        wait = float(answer.headers.get("Retry-After", "5"))
    while body["status"] != "succeeded":
        if body["finished_at"] is not None:
            raise No(body["error"])
        if time.monotonic() + wait > give_up_at:
            raise Unreachable(f"It is still being verified ({body['id']}): --wait longer.")
        time.sleep(wait)
        body = run.client.get(f"/v1/jobs/{body['id']}")
    return dict(body["progress"])


def _check(run: Run, file: str, options: list[str]) -> None:
    """Check an export by verify.py. Raises `No` if it is not whole and unchanged."""
    found = verifier.verify("audit", file, *options)
    if run.out.json:
        run.out.aside(run.out.document, {"valid": found.code == 0, "checks": found.checks})
    else:
        for line in found.lines:
            run.out.aside(run.out.text, plain(line))
    if found.code != 0:
        raise No(f"{file} does not hold.")


@audit.command("export")
@click.option("-o", "--output", "to", default="-", metavar="FILE", help="Else standard output.")
@click.option("--layout", type=click.Choice(["chain", "events"]), help="Events: for log readers.")
@click.option("--anchors", metavar="FILE", help="Save its newest anchors, with their proofs.")
@since_until
@pass_run
def export(run: Run, /, to: str, anchors: str | None, **query: Any) -> None:
    """Save the chain, an entry a line; `audit verify FILE` and verify.py check it anywhere."""
    end = b""
    asked = run.client.download("/v1/audit", {"Accept": _NDJSON}, **query)
    with asked as answer, saving(to) as file:
        for piece in answer.iter_bytes(_PIECE):
            file.write(piece)
            end = (end + piece)[-_PIECE:]
        last = end.rstrip(b"\n").rpartition(b"\n")[2]
        if not last.startswith(b"{") or json.loads(last).get("type") != "trailer":
            raise Unreachable("The export ended before its last line: run it again.")
    if anchors is not None:
        with run.client.download("/v1/audit/anchors") as answer, saving(anchors) as file:
            copy(answer, file)
    if to != "-":
        run.out.item({"file": to})
