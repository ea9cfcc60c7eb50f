"""`doctor`: whether the service is reached, the key good, the clock right, the spool sent."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

from record_service.commands.base import Command, No, Run, pass_run
from record_service.commands.listening import print_checks
from record_service.errors import RecordsError

if TYPE_CHECKING:
    import httpx2

# Receivers of webhooks refuse what is further from now.
_CLOCK_SECONDS = 300.0
_CERTIFICATE_DAYS = 14.0
_DAY = 86_400.0
Check = dict[str, Any]


@click.command(cls=Command)
@pass_run
def doctor(run: Run) -> None:
    """Check what a client needs: reach, TLS, key, clock, spool; 1 if something is wrong."""
    checks = list(_checks(run))
    if run.out.json:
        run.out.document({"checks": checks})
    else:
        print_checks(run.out, checks)
    if not all(each["ok"] for each in checks):
        raise No("Something is wrong.")


def _checks(run: Run) -> Iterator[Check]:
    try:
        client = run.client
        begun = time.monotonic()
        with client.download("/v1/keys/self") as answer:
            answer.read()
        took = time.monotonic() - begun
    except RecordsError as error:
        # A refusal is an answer: of a key that is not good.
        name = "reach" if getattr(error, "status", None) is None else "key"
        yield _check(name, ok=False, detail=str(error))
    else:
        yield _check(
            "reach", ok=True, detail=f"{client.base_url} answers within {1000 * took:.0f} ms"
        )
        if client.base_url.startswith("https:"):
            yield _tls(answer)
        yield _key(answer.json())
        yield _clock(answer, took)
    yield _spool()


def _tls(answer: httpx2.Response) -> Check:
    """Say which protocol is spoken, and for how long the certificate is good."""
    spoken = answer.extensions["network_stream"].get_extra_info("ssl_object")
    ends = (spoken.getpeercert() or {}).get("notAfter")
    if ends is None:
        return _check("tls", ok=True, detail=f"{spoken.version()}")
    days = (_moment(ends, "%b %d %H:%M:%S %Y GMT") - time.time()) / _DAY
    words = f"{spoken.version()}; the certificate ends in {days:.0f} days"
    return _check("tls", ok=days > _CERTIFICATE_DAYS, detail=words)


def _key(key: dict[str, Any]) -> Check:
    pin = key["pin"]
    words = f"{key['name']} ({key['id']}), role {key['role']}, tenant {key['tenant_id']}"
    if pin is not None:
        words += f", pinned to {pin['agent_id']} for {pin['principal']}"
    if key["role"] == "read":
        words += ": it cannot add records"
    return _check("key", ok=True, detail=f"{words}; ends {key['expires_at'] or 'never'}")


def _clock(answer: httpx2.Response, took: float) -> Check:
    """Compare this machine's clock with the service's, which tells whole seconds."""
    told = answer.headers.get("Date")
    if told is None:
        return _check("clock", ok=True, detail="the service does not tell its time")
    away = time.time() - _moment(told, "%a, %d %b %Y %H:%M:%S GMT") - took / 2 - 0.5
    if abs(away) <= 1.0 + took:
        return _check("clock", ok=True, detail="as the service's")
    words = f"{abs(away):.0f} s {'ahead of' if away > 0 else 'behind'} the service's"
    return _check("clock", ok=abs(away) < _CLOCK_SECONDS, detail=words)


def _spool() -> Check:
    """Say what recorders of this user left on this machine, running or not."""
    # Most commands need nothing of it.
    from record_service.recorder import places, spool  # noqa: PLC0415

    place = places.folder()
    found = spool.held(place)
    words = (
        f"{place}: {found['files']} files, {found['bytes']} bytes, {found['waiting']} waiting, "
        f"{found['dead']} refused for good, {found['corrupt']} damaged files"
    )
    oldest = found["oldest"]
    if oldest is not None:
        words += f"; the oldest waits for {time.time() - oldest:.0f} s"
    return _check("spool", ok=not (found["dead"] or found["corrupt"]), detail=words)


def _moment(text: str, form: str) -> float:
    return datetime.strptime(text, form).replace(tzinfo=timezone.utc).timestamp()


def _check(name: str, *, ok: bool, detail: str) -> Check:
    return {"name": name, "ok": ok, "detail": detail}
