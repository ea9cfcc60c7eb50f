"""The audit chain: its entries, verification, anchors, and export as a file."""

from operator import attrgetter
from typing import Any

from flask import request, url_for
from sqlalchemy.orm import Session
from werkzeug.wrappers import Response

from app import ids
from app.api.http.paging import PageArgs, page_of
from app.api.http.services import services, transaction
from app.api.resources.audit import AuditArgs, RangeArgs, entries, export_answer, verify_now
from app.api.resources.verification import VerifyArgs, anchor_reader, anchoring
from app.console.frame import forms, lists, rendering
from app.console.frame.access import Pages
from app.console.frame.forms import Input
from app.console.frame.lists import Listed
from app.core.audit import view
from app.core.callers import Role
from app.core.verification import daily
from app.errors import AuditChainBroken, LogHalted
from app.ledger.hash_chain import Outcome
from app.models import Job

blp = Pages("audit", "/audit")


def _stands(session: Session) -> dict[str, Any]:
    """Return how far the chain is anchored (None: it is broken), and when all were verified."""
    verified_at = daily.verified_at(session, services().settings.master_keys)
    try:
        stands = anchoring(session, anchor_reader(session))
    except (AuditChainBroken, LogHalted):
        stands = None
    return {"verified_at": verified_at, "stands": stands}


_ENTRIES = lists.serve(
    blp,
    Listed(
        "audit",
        entries,
        view.represent,
        AuditArgs,
        position=attrgetter("seq"),
        named=lambda found: [{"who": e["actor"]["id"], "what": e["target"]["id"]} for e in found],
        beside=lambda session, *_: _stands(session),
        breaks=(AuditChainBroken,),
        shown={
            "outcomes": forms.choices(Outcome),
            "layouts": [("chain", "entries as they were hashed"), ("events", "flat events")],
            "orders": [
                (view.Order.DESCENDING.value, "newest"),
                (view.Order.ASCENDING.value, "oldest"),
            ],
        },
        does=("audit list", "GET /v1/audit"),
    ),
)


@blp.page("/verify")
def verify_again() -> Response:
    """Verify the chain now, through the head that the URL names: a verification's permalink."""
    if not request.args:
        return rendering.done(url_for(".index"), "Verify the chain here.")
    return _verified(forms.query())


@blp.form("/verify", Role.READ)
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


@blp.form("/export", Role.READ, again=_ENTRIES.page)
def export(typed: Input) -> Response:
    """Send the chain between two moments as NDJSON, and append an entry that records that."""
    answered = export_answer(typed.load(RangeArgs))
    answered.headers["Content-Disposition"] = 'attachment; filename="audit.ndjson"'
    return answered


@blp.page("/anchors")
def anchor_list() -> Response:
    """List the heads of the chain in the transparency log, each with its evidence."""
    broken: AuditChainBroken | LogHalted | None = None
    stands: dict[str, Any] | None = None
    found: dict[str, Any] = {"data": [], "next_cursor": None}
    typed = forms.query()
    with transaction(snapshot=True) as session, typed.refusing():
        try:
            reader = anchor_reader(session)
            stands = anchoring(session, reader)
            args = typed.load(PageArgs)
            found = page_of(args, reader.rows, reader.represent, attrgetter("seq"))
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
