"""What operators and their tools ask: is it alive, is it ready, how is it doing."""

import hmac
from contextlib import suppress
from typing import Any

from flask import Response, abort, request
from marshmallow import fields as plain
from prometheus_client import CONTENT_TYPE_LATEST
from sqlalchemy.orm import Session

from app import counters, migrations
from app.api.http.access.auth import probed, public
from app.api.http.requests import fields
from app.api.http.requests.parsing import Blueprint
from app.api.http.requests.schemas import Schema
from app.api.http.responses import prometheus
from app.api.http.responses.json_responses import answer
from app.api.http.services import services
from app.core import gauges
from app.core.anchoring import evidence, incidents
from app.core.anchoring import status as anchoring_status
from app.core.gauges import Gauges
from app.core.log import generations, publication, status
from app.core.master_keys import key_registry
from app.core.verification import alerts, daily_state
from app.database import database_now
from app.errors import LogDamaged, Unauthenticated, Unavailable
from app.ledger.notes import Malformed
from app.models import NO_TENANT

blp = Blueprint("system", __name__, description="Health and metrics, for operators.")

# Without these, effects wait; `database` has a status of its own.
_NEEDED = ("redis", "worker", "scheduler", "master_keys", "log", "anchoring", "audit")
_MIGRATE = "behind this release: run `python -m app.manage migrate`"


class AliveSchema(Schema):
    """The process answers."""

    status = fields.Text(10, required=True, metadata={"example": "ok"})


class ReadinessSchema(Schema):
    """Whether requests can be served, and what is missing besides."""

    status = fields.Text(20, required=True, metadata={"example": "ready"})
    degraded = fields.Items(fields.Text(20), required=True, max_items=10)
    parts = plain.Dict(keys=plain.String(), values=plain.String(), required=True)


@blp.route("/healthz", methods=["GET"])
@probed
@blp.response(200, AliveSchema)
def healthz() -> Response:
    """Say that the process answers."""
    return answer({"status": "ok"})


@blp.route("/readyz", methods=["GET"])
@probed
@blp.response(200, ReadinessSchema)
@blp.alt_response(503, schema=ReadinessSchema)
def readyz() -> Response:
    """Say whether requests can be served.

    Only the database is needed for that. `degraded` names what is missing besides: without `redis`,
    `worker` or `scheduler` everything is accepted and kept, and its effects wait. `master_keys` is
    among them when MASTER_KEYS lacks a key that something may be sealed under. `log` is among
    them when the transparency log signs nothing, and its part says why: `log-rolled-back`, …; it
    is `log-damaged` as well when something of it that was read is damaged, which `audit` names.
    `anchoring` is when heads of chains or checkpoints of the log are not anchored as they should
    be, and its part says since when, by whom and why; after an `ALARM` see docs/operations.md.
    `audit` is when an audit chain was found broken, and is not verified again since, or when the
    daily verification of all chains has not ended well for more than a day.
    """
    database = _database_state()
    parts = {"database": database, **_others(), **_log_states(database), **_anchoring(database)}
    parts |= {"audit": _audit(database), "master_keys": _master_keys(database)}
    missing = [name for name in _NEEDED if parts[name] != "up"]
    ready = database == "up"
    body: dict[str, Any] = {
        "status": "ready" if ready else "unavailable",
        "degraded": missing,
        "parts": parts,
    }
    return answer(body, 200 if ready else 503, {} if ready else {"Retry-After": "2"})


@blp.route("/metrics", methods=["GET"])
@public
@blp.response(200, {"type": "string"}, content_type="text/plain")
@blp.alt_response(401, "UNAUTHORIZED")
@blp.alt_response(404, "NOT_FOUND")
def read_metrics() -> Response:
    """Read the metrics of the whole stack, in Prometheus's text format.

    Every web process answers alike: ask one of them, or do not add up what several say. Needs
    `Authorization: Bearer` with the operator's METRICS_TOKEN; 404 where none is set.
    """
    token = services().settings.metrics_token
    if token is None:
        abort(404)
    sent = request.headers.get("Authorization", "")
    if not hmac.compare_digest(sent.encode(), f"Bearer {token}".encode()):
        raise Unauthenticated("Send Authorization: Bearer with the METRICS_TOKEN.")
    return Response(_metrics(), content_type=CONTENT_TYPE_LATEST)


def _metrics() -> bytes:
    """Write what can be known at this moment."""
    states = {"database": _database_state(), **_others()}
    parts = {part: state == "up" for part, state in states.items() if state != "unknown"}
    if not parts["database"]:
        return prometheus.text(parts, None, None, None)
    services().counters.write()
    return prometheus.text(parts, _figures(), _gauges(), _unverified_since())


def _figures() -> list[tuple[str, str, float]] | None:
    with suppress(Unavailable), services().database.transaction(NO_TENANT) as session:
        return counters.read(session)
    return None


def _gauges() -> Gauges | None:
    with suppress(Unavailable), services().database.across_tenants() as session:
        return gauges.read(session)
    return None


def _unverified_since() -> float | None:
    with suppress(Unavailable), services().database.across_tenants() as session:
        since = daily_state.unverified_since(session, services().settings.master_keys)
        return 0.0 if since is None else (database_now(session) - since).total_seconds()
    return None


def _database_state() -> str:
    try:
        with services().database.across_tenants() as session:
            return "up" if migrations.is_current(session.connection()) else _MIGRATE
    except Unavailable:
        return "away"


def _log_states(database: str) -> dict[str, str]:
    """Say whether the log signs and is whole, and whether it is guarded against a rollback."""
    head = "kept" if services().settings.log_head_url else status.NO_HEAD
    if database != "up":
        return {"log": "unknown", "log_head": head}
    try:
        trouble = generations.load_state(services().database).trouble
        with services().database.across_tenants() as session:
            if trouble is None and alerts.log_is_damaged(session):
                trouble = LogDamaged.slug
    except Unavailable:
        return {"log": "unknown", "log_head": head}
    return {"log": trouble or "up", "log_head": head}


def _anchoring(database: str) -> dict[str, str]:
    """Say what is not anchored, and who vouches for the log, by evidence that is there."""
    if database != "up":
        return _UNKNOWN
    try:
        with services().database.across_tenants() as session:
            found = [incidents.line(each) for each in incidents.rows(session)]
            return {"anchoring": "; ".join(found) or "up", "anchored_by": _vouchers(session)}
    except Unavailable:
        return _UNKNOWN


def _vouchers(session: Session) -> str:
    settings = services().settings
    policy, trusted = settings.witness_policy, settings.tsa_ca_file
    others = anchoring_status.asked(timestamps=settings.tsa_url is not None, policy=policy)
    try:
        last = publication.current(session)
        reach = None if last is None else evidence.reach(session, last, policy, trusted)
    except Malformed:
        return "Unknown: the stored log data is damaged."
    return anchoring_status.of_log(reach, others)


_UNKNOWN = {"anchoring": "unknown", "anchored_by": "unknown"}


def _audit(database: str) -> str:
    """Say what verifying the audit chains has found, and since when nobody did."""
    if database != "up":
        return "unknown"
    try:
        with services().database.across_tenants() as session:
            overdue = daily_state.standing(session, services().settings.master_keys)
            found = [alerts.standing(session), overdue]
            return "; ".join(filter(None, found)) or "up"
    except Unavailable:
        return "unknown"


def _master_keys(database: str) -> str:
    """Say which keys are needed and not there."""
    if database != "up":
        return "unknown"
    try:
        with services().database.across_tenants() as session:
            missing = key_registry.missing(session, services().settings.master_keys)
    except Unavailable:
        return "unknown"
    return key_registry.say_missing(missing) if missing else "up"


def _others() -> dict[str, str]:
    presence = services().bell.presence()
    if presence is None:
        return {"redis": "away", "worker": "unknown", "scheduler": "unknown"}
    return {"redis": "up"} | {str(role): "up" if up else "away" for role, up in presence.items()}
