"""`webhooks listen` and `webhooks verify`: events on a laptop, and why one is refused."""

from __future__ import annotations

import base64
import json
import math
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType
from typing import Any

import click

from record_service import forwarding
from record_service.client import Json
from record_service.commands.base import Command, No, Run, at, pass_run
from record_service.output import Output, plain


class _Signals:
    """Ctrl-C and SIGTERM end a listener between two attempts: what is out gets its answer first."""

    def __init__(self) -> None:
        self.busy = False
        self._asked = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self._asked or not self.busy:
            raise KeyboardInterrupt
        self._asked = True

    def check(self) -> None:
        """End here, if that was asked for meanwhile."""
        self.busy = False
        if self._asked:
            raise KeyboardInterrupt

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Let a wait for the next attempt be ended at once: nothing is out."""
        self.check()
        yield
        self.busy = True


@click.command("listen", cls=Command)
@click.option("--forward-to", "url", metavar="URL", help="Where to: http://127.0.0.1:3000/hooks")
@click.option("--types", metavar="TYPE,…", help="Else every type.")
@pass_run
def listen(run: Run, url: str | None, types: str | None) -> None:
    """Follow the tenant's events, and forward them to this machine.

    Each is signed as a webhook's deliveries are, with a secret of this machine's own. A listener
    that starts again goes on where it stopped.
    """
    if url is not None and not url.startswith(("http://", "https://")):
        raise click.UsageError("--forward-to is an address, such as http://127.0.0.1:3000/hooks.")
    me = run.client.keys.self()
    who = (run.client.base_url, me["tenant_id"])
    wanted = frozenset(types.split(",") if types else ())
    identity = (*who, json.dumps(me["pin"], sort_keys=True), url or "", *sorted(wanted))
    waiting = _Waiting(run)
    run.client.transport.patience = math.inf
    run.client.transport.sleep = lambda seconds: waiting.wait(
        f"{run.client.base_url} does not answer; waiting for it.", seconds
    )
    secret = forwarding.own_secret(*who)
    signals = _Signals()

    def wait_for_receiver(why: str, seconds: float) -> None:
        with signals.pause():
            waiting.wait(why, seconds)

    with ExitStack() as opened:
        receiver = None
        if url is not None:
            receiver = forwarding.Receiver(url, secret, wait_for_receiver)
            opened.enter_context(closing(receiver))
        position = opened.enter_context(closing(forwarding.Position(*identity)))
        forwarding.begin(run.client, position)
        run.out.note(f"ready; the signing secret is {secret}")
        _follow(run, position, wanted, receiver, signals)


def _follow(
    run: Run,
    position: forwarding.Position,
    types: frozenset[str],
    receiver: forwarding.Receiver | None,
    signals: _Signals,
) -> None:
    for event in forwarding.events(run.client, position, types, run.out.note):
        signals.check()
        if event is None:
            continue
        signals.busy = True
        if receiver is None:
            _show(run, event, None)
            position.add(event["id"])
        else:
            answer = receiver.send(event)
            # Noted first: an event with a line was never sent again.
            position.add(event["id"])
            _show(run, event, answer)


def _show(run: Run, event: Json, answer: forwarding.Answer | None) -> None:
    told = None if answer is None else {"status": answer.status, "ms": answer.ms}
    line = "\t".join([event["timestamp"], event["type"], event["id"]])
    if answer is not None:
        good = 200 <= answer.status < 300
        status = run.out.style(str(answer.status), fg="green" if good else "red")
        line += f"\t{status}\t{answer.ms} ms"
    run.out.line({"event": event, "answer": told}, line)


class _Waiting:
    """Says once what is waited for, until something else is."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._said = ""

    def wait(self, why: str, seconds: float) -> None:
        if why != self._said:
            self._run.out.note(why)
            self._said = why
        time.sleep(seconds)


@click.command("verify", cls=Command)
@click.argument("webhook_id")
@click.argument("file")
@click.option("--received-at", metavar="TIME", help="Else when the file was written.")
@pass_run
def verify(run: Run, webhook_id: str, file: str, received_at: str | None) -> None:
    """Say why a receiver refuses a saved request, and what the mistake is.

    FILE is the request as it came, headers, an empty line and the raw body; or JSON with `headers`,
    and `body` or `body_base64`. `-` is standard input.
    """
    raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    if received_at is None and file != "-":
        written = datetime.fromtimestamp(Path(file).stat().st_mtime, timezone.utc)
        received_at = written.strftime("%Y-%m-%dT%H:%M:%SZ")
    body = _pasted(raw)
    if received_at is not None:
        body.setdefault("received_at", received_at)
    found = run.client.post(at("/v1/webhooks/{}/verify-signature", webhook_id), body)
    if run.out.json:
        run.out.aside(run.out.document, found)
    else:
        run.out.aside(print_checks, run.out, found["checks"])
    if not found["valid"]:
        raise No(found["advice"])


def print_checks(out: Output, checks: list[Json]) -> None:
    """Print checks, of a request or of a receiver, a line each."""
    for each in checks:
        verdict = {True: "ok", False: "FAILED", None: "unknown"}[each["ok"]]
        out.text(f"{each['name']}\t{verdict}\t{plain(each['detail'])}")


def _pasted(raw: bytes) -> dict[str, Any]:
    """Read a saved request."""
    try:
        read = json.loads(raw)
    except ValueError:
        read = None
    if isinstance(read, dict) and isinstance(read.get("headers"), dict):
        return read
    ends = [(raw.find(gap), len(gap)) for gap in (b"\r\n\r\n", b"\n\n") if gap in raw]
    if not ends:
        raise click.UsageError("This is no request: headers, an empty line, the body.")
    end, gap = min(ends)
    lines = raw[:end].decode("latin-1").splitlines()
    pairs = [line.partition(":") for line in lines if ":" in line.split(" ", 1)[0]]
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    return {"headers": headers, "body_base64": base64.b64encode(raw[end + gap :]).decode()}
