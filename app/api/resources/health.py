"""Liveness, readiness and metrics, for operators and their tools."""

import hmac
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

from flask import Response, abort, request
from marshmallow import fields as plain
from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.core import Metric
from sqlalchemy.orm import Session

from app import counters, fields
from app.api.http.access.auth import probed, public
from app.api.http.requests.parsing import Blueprint
from app.api.http.responses import prometheus
from app.api.http.responses import prometheus_gauges as gauges_text
from app.api.http.responses.answers import answer, encode
from app.api.http.services import services
from app.core.anchoring import status as anchoring_status
from app.core.digests import troubles
from app.core.health import gauges, lane_figures, log_figures, schema, write_proof
from app.core.master_keys import key_registry
from app.core.verification import daily
from app.database import database_now
from app.errors import Unauthenticated, Unavailable
from app.lib.gateway.gateway import PROBE_SECONDS
from app.models import NO_TENANT
from app.schemas import AnswerSchema
from app.settings import VERSION

_Read = TypeVar("_Read")

blp = Blueprint("system", __name__, description="Health and metrics, for operators.")

# Without these, effects wait; `database` has a status of its own.
_NEEDED = (
    *("database_writes", "redis", "worker", "scheduler"),
    *("master_keys", "log", "anchoring", "audit", "mail"),
)
_MIGRATE = "behind this release: run `python -m app.manage migrate`"


class AliveSchema(AnswerSchema):
    """Liveness of the process."""

    status = fields.Text(10, example="ok")


class ReadinessSchema(AnswerSchema):
    """Whether requests can be served, and which parts are degraded."""

    status = fields.Text(20, example="ready")
    degraded = fields.Items(fields.Text(20), max_items=10)
    parts = plain.Dict(keys=plain.String(), values=plain.String())


@blp.route("/healthz", methods=["GET"])
@probed
@blp.response(200, AliveSchema)
def healthz() -> Response:
    """Check that the process answers."""
    return answer({"status": "ok"})


@blp.route("/readyz", methods=["GET"])
@probed
@blp.response(200, ReadinessSchema)
@blp.alt_response(503, schema=ReadinessSchema)
def readyz() -> Response:
    """Check whether requests can be served.

    Only the database is needed for that. `degraded` lists the other parts that fail.
    `database_writes`: the database answers reads and refuses writes, and its part says why: its
    disk is full, it is a standby, or it is set read-only. Reads are answered, each request that
    writes is 503. Without `redis`, `worker` or `scheduler` requests are accepted and stored, and
    their effects wait.
    `master_keys`: MASTER_KEYS lacks a key that something may be sealed under. `log`: the
    transparency log signs nothing, and its part says why (`log-rolled-back`, …); it is also
    `log-damaged` when damaged log data was read, which `audit` names. `anchoring`: chain heads or
    checkpoints of the log are not anchored as they should be, and its part says since when, by whom
    and why; after an `ALARM` see docs/operations.md. `audit`: an audit chain was found broken and
    has not been verified since, or the daily verification of all chains has not succeeded for more
    than a day. `mail`: digests wait because no mail server is set, because it refuses the sender or
    the sign-in, or for two hours; or it refused the content of digests, also without the findings'
    words. A refused recipient is its tenant's to mend, and is not among these.

    `database`, `redis`, `worker` and `scheduler` are checked on each request. The other states are
    at most 15 seconds old; each is `unknown`, with its age, if it cannot be renewed.

    What is not known within two seconds is not waited for: the answer is then 503, `database`
    being `unknown`.
    """
    parts, missing = states()
    ready = parts["database"] == "up"
    body: dict[str, Any] = {
        "status": "ready" if ready else "unavailable",
        "degraded": missing,
        "parts": parts,
    }
    return answer(body, 200 if ready else 503, {} if ready else {"Retry-After": "2"})


def not_in_time(_environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
    """Answer a probe whose view was not done in time, such as beside a database that stalls."""
    unknown = f"unknown: not known within {PROBE_SECONDS:g} s"
    body = {"status": "unavailable", "degraded": [], "parts": {"database": unknown}}
    start(
        "503 Service Unavailable",
        [("Content-Type", "application/json"), ("Cache-Control", "no-store"), ("Retry-After", "2")],
    )
    return [encode(body)]


def states() -> tuple[dict[str, str], list[str]]:
    """Return the state of each part ("up" or the problem), and the names of degraded parts.

    The database is never among the latter: without it no request can be served.
    """
    database = _database_state()
    kept = services().readiness
    parts = {
        "database": database,
        **_others(),
        **(kept.parts() if database == "up" else kept.unknown()),
    }
    return parts, [name for name in _NEEDED if parts[name] != "up"]


@blp.route("/metrics", methods=["GET"])
@public
@blp.response(200, {"type": "string"}, content_type="text/plain")
@blp.alt_response(401, "UNAUTHORIZED")
@blp.alt_response(404, "NOT_FOUND")
def read_metrics() -> Response:
    """Read the metrics of the whole stack, in Prometheus's text format.

    Every web process returns the same figures: scrape one of them, or do not sum over several.
    Needs `Authorization: Bearer` with the operator's METRICS_TOKEN; 404 where none is set.
    """
    token = services().settings.metrics_token
    if token is None:
        abort(404)
    sent = request.headers.get("Authorization", "")
    if not hmac.compare_digest(sent.encode(), f"Bearer {token}".encode()):
        raise Unauthenticated("Send Authorization: Bearer with the METRICS_TOKEN.")
    return Response(_metrics(), content_type=CONTENT_TYPE_LATEST)


def _metrics() -> bytes:
    """Return the metrics as text; without the database, only those that do not need it."""
    here = services()
    states = {"database": _database_state(), **_others()}
    if states["database"] == "up":
        states["database_writes"] = _writes_state()
    parts = {part: state == "up" for part, state in states.items() if state != "unknown"}
    families = [*gauges_text.release(VERSION), *gauges_text.processes(here.bell.processes() or ())]
    if not parts["database"]:
        return prometheus.text(parts, None, families)
    here.counters.work()
    return prometheus.text(parts, _figures(), [*families, *_gauges()])


def _figures() -> list[tuple[str, str, float]] | None:
    with suppress(Unavailable), services().database.transaction(NO_TENANT) as session:
        return counters.read(session)
    return None


def _gauges() -> Iterator[Metric]:
    """Yield the gauges of the database; a query that takes too long loses only its own."""
    settings = services().settings
    others = anchoring_status.asked(
        timestamps=settings.tsa_url is not None, policy=settings.witness_policy
    )
    yield from _asked(gauges.read, gauges_text.totals)
    yield from _asked(lane_figures.by_state, gauges_text.lanes)
    yield from _asked(lane_figures.worst, gauges_text.failing_webhooks)
    yield from _asked(lambda session: log_figures.read(session, others), gauges_text.log)
    yield from _asked(lambda session: troubles.counted(troubles.read(session)), gauges_text.digests)
    yield from _asked(_missing_keys, gauges_text.master_keys)
    yield from _asked(_unverified_seconds, gauges_text.verification)


def _asked(
    read: Callable[[Session], _Read], written: Callable[[_Read], Iterable[Metric]]
) -> Iterable[Metric]:
    with suppress(Unavailable), services().database.across_tenants() as session:
        gauges.limit_time(session)
        return written(read(session))
    return ()


def _missing_keys(session: Session) -> int:
    return len(key_registry.missing(session, services().settings.master_keys))


def _unverified_seconds(session: Session) -> float:
    since = daily.unverified_since(session, services().settings.master_keys)
    return 0.0 if since is None else (database_now(session) - since).total_seconds()


def _database_state() -> str:
    try:
        return "up" if schema.is_current(services().database) else _MIGRATE
    except Unavailable:
        return "away"


def _writes_state() -> str:
    here = services()
    try:
        return write_proof.refusal(here.database, here.settings.master_keys) or "up"
    except Unavailable:
        return "unknown"


def _others() -> dict[str, str]:
    presence = services().bell.presence()
    if presence is None:
        trouble = services().bell.trouble
        away = f"away: {trouble}" if trouble else "away"
        return {"redis": away, "worker": "unknown", "scheduler": "unknown"}
    return {"redis": "up"} | {str(role): "up" if up else "away" for role, up in presence.items()}
