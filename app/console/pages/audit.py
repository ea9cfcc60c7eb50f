"""The audit chain: its entries, verification, anchors, and export as a file."""

from datetime import datetime
from typing import Any

from flask import Blueprint, request, url_for
from werkzeug.wrappers import Response

from app import ids
from app.api.http.paging import PageArgs, page_of
from app.api.http.services import services, transaction
from app.api.resources import audit
from app.api.resources.audit import AuditArgs, RangeArgs, entries, verify_now
from app.api.resources.verification import VerifyArgs, anchor_reader, anchoring
from app.console.frame import forms, rendering
from app.console.frame.access import signed_in
from app.console.frame.forms import Input
from app.core.audit import view
from app.core.callers import Role
from app.core.verification import daily
from app.errors import AuditChainBroken, Invalid, LogHalted
from app.ledger.hash_chain import Outcome
from app.models import Job

blp = Blueprint("audit", __name__, url_prefix="/audit")


@blp.get("")
@signed_in(Role.READ, whole_tenant=True)
def index() -> Response:
    """List entries, newest first, as the URL filters them."""
    return _page(forms.blank())


def _page(export: Input, status: int = 200) -> Response:
    typed = forms.query()
    found: dict[str, Any] = {"data": [], "next_cursor": None}
    names: dict[str, str] = {}
    broken: AuditChainBroken | None = None
    with transaction() as session:
        try:
            args = typed.load(AuditArgs)
            found = page_of(
                args,
                lambda *where: entries(session, args, *where),
                view.represent,
                lambda entry: entry.seq,
            )
            parties = ({"who": e["actor"]["id"], "what": e["target"]["id"]} for e in found["data"])
            names = rendering.names_in(session, typed.typed, *parties)
        except Invalid as wrong:
            typed = typed.refused(wrong)
        except AuditChainBroken as error:
            broken = error
    stands, verified_at = _stands()
    return rendering.page(
        "audit/list",
        status,
        export=export,
        stands=stands,
        verified_at=verified_at,
        outcomes=[(each.value, each.value) for each in Outcome],
        typed=typed,
        found=found,
        names=names,
        broken=broken,
        layouts=[("chain", "entries as they were hashed"), ("events", "flat events")],
        orders=[(view.Order.DESCENDING.value, "newest"), (view.Order.ASCENDING.value, "oldest")],
        does=("audit list", "GET /v1/audit"),
    )


def _stands() -> tuple[dict[str, Any] | None, datetime | None]:
    """Return how far the chain is anchored (None: it is broken), and when all were verified."""
    with transaction(snapshot=True) as session:
        verified_at = daily.verified_at(session, services().settings.master_keys)
        try:
            return anchoring(session, anchor_reader(session)), verified_at
        except (AuditChainBroken, LogHalted):
            return None, verified_at


@blp.get("/verify")
@signed_in(Role.READ, whole_tenant=True)
def verify_again() -> Response:
    """Verify the chain now, through the head that the URL names: a verification's permalink."""
    if not request.args:
        return rendering.done(url_for(".index"), "Verify the chain here.")
    return _verified(forms.query())


@blp.post("/verify")
@signed_in(Role.READ, whole_tenant=True)
def verify() -> Response:
    """Verify the chain now, and show the report."""
    return _verified(forms.sent())


def _verified(typed: Input) -> Response:
    does = ("audit verify", "GET /v1/audit/verify")
    try:
        found = verify_now(typed.load(VerifyArgs))
    except (AuditChainBroken, LogHalted) as error:
        return rendering.page("audit/verified", 409, broken=error, found=None, kept={}, does=does)
    if isinstance(found, Job):
        text = "The chain is long, so a job verifies it. Its progress is the report in the end."
        return rendering.done(url_for("console.jobs.show", job_id=ids.text("job", found.id)), text)
    kept = {name: typed.value(name) for name in ("seq", "hash") if typed.value(name)}
    return rendering.page("audit/verified", broken=None, found=found, kept=kept, does=does)


@blp.post("/export")
@signed_in(Role.READ, whole_tenant=True)
def export() -> Response:
    """Send the chain between two moments as NDJSON, and append an entry that records that."""
    typed = forms.sent()
    try:
        answered = audit.export_answer(typed.load(RangeArgs))
    except Invalid as wrong:
        return _page(typed.refused(wrong), 422)
    answered.headers["Content-Disposition"] = 'attachment; filename="audit.ndjson"'
    return answered


@blp.get("/anchors")
@signed_in(Role.READ, whole_tenant=True)
def anchor_list() -> Response:
    """List the heads of the chain in the transparency log, each with its evidence."""
    typed = forms.query()
    found: dict[str, Any] = {"data": [], "next_cursor": None}
    stands: dict[str, Any] | None = None
    broken: AuditChainBroken | LogHalted | None = None
    with transaction(snapshot=True) as session:
        try:
            reader = anchor_reader(session)
            stands = anchoring(session, reader)
            args = typed.load(PageArgs)
            found = page_of(args, reader.rows, reader.represent, lambda anchor: anchor.seq)
        except Invalid as wrong:
            typed = typed.refused(wrong)
        except (AuditChainBroken, LogHalted) as error:
            broken = error
    return rendering.page(
        "audit/anchors",
        typed=typed,
        found=found,
        stands=stands,
        broken=broken,
        does=(None, "GET /v1/audit/anchors"),
    )
