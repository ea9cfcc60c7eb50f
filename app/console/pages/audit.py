"""The audit chain: entries, verification, anchors, export; period exports; legal holds."""

from functools import partial
from operator import attrgetter, itemgetter
from typing import Any
from uuid import UUID

from flask import request
from sqlalchemy.orm import Session
from werkzeug.wrappers import Response

from app import ids
from app.api.http.services import caller, services, transaction
from app.api.resources.audit import AuditArgs, RangeArgs, entries, export_answer, verify_now
from app.api.resources.records.exports import NewExportSchema, download, list_exports, represent
from app.api.resources.records.holds import NewHoldSchema, list_holds, scope_of
from app.api.resources.verification import VerifyArgs, anchor_reader, anchoring
from app.console.frame import forms, lists, rendering
from app.console.frame.access import Pages
from app.console.frame.forms import Input
from app.core.audit import view
from app.core.callers import Role
from app.core.exports import exports
from app.core.records import holds
from app.core.records.holds import HoldStatus
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
    "audit",
    entries,
    show=view.represent,
    args=AuditArgs,
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
)


@blp.page("/verify")
def verify_again() -> Response:
    """Verify the chain now, through the head that the URL names: a verification's permalink."""
    if not request.args:
        return rendering.done(".index", "Verify the chain here.")
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
        return rendering.done("console.jobs.show", text, job_id=ids.text("job", found.id))
    kept = {name: typed.value(name) for name in ("seq", "hash") if typed.value(name)}
    return rendering.page("audit/verified", broken=None, found=found, kept=kept, does=does)


@blp.form("/export", Role.READ, again=_ENTRIES.page)
def export(typed: Input) -> Response:
    """Send the chain between two moments as NDJSON, and append an entry that records that."""
    return rendering.attached(export_answer(typed.load(RangeArgs)), "audit.ndjson")


def _anchors(session: Session, _: object, *where: Any) -> list[tuple[int, dict[str, Any]]]:
    """Return the heads of the chain in the transparency log, each with its evidence."""
    reader = anchor_reader(session)
    return [(row.seq, reader.represent(row)) for row in reader.rows(*where)]


lists.serve(
    blp,
    "anchors",
    _anchors,
    "/anchors",
    endpoint="anchor_list",
    show=itemgetter(1),
    position=itemgetter(0),
    named=lambda _: (),
    template="audit/anchors",
    beside=lambda session, *_: _stands(session),
    breaks=(AuditChainBroken, LogHalted),
    does=(None, "GET /v1/audit/anchors"),
)


exports_blp = Pages("exports", "/exports")

_EXPORTS = lists.serve(
    exports_blp,
    "exports",
    list_exports,
)


@exports_blp.form("", Role.ADMIN, again=_EXPORTS.page)
def order_export(typed: Input) -> Response:
    """Order an export."""
    made = forms.do(exports.create, typed.load(NewExportSchema), show=represent)
    return rendering.done(".show", "The export is being made.", export_id=made["id"])


@exports_blp.page("/<export_id>", endpoint="show")
def show_export(export_id: UUID | None) -> Response:
    """Show one export, with its totals once it is made."""
    with transaction() as session:
        found = exports.find(session, caller().tenant_id, export_id)
        export = represent(found)
        names = rendering.names_in(session, export)
    return rendering.page(
        "exports/one",
        export=export,
        names=names,
        watched=export["state"] == "making",
        does=("exports show {export_id}", "GET /v1/exports/{export_id}"),
    )


@exports_blp.page(f"/<export_id>/files/{exports.FILE}")
def download_export(export_id: UUID | None) -> Response:
    """Send an export's file, as the API does."""
    return rendering.taken(partial(download, export_id))


@exports_blp.form("/<export_id>/delete", Role.ADMIN)
def delete_export(export_id: UUID | None) -> Response:
    """Delete an export's file, or stop its making."""
    forms.do(exports.delete, export_id)
    return rendering.done(".show", "The file was deleted. What was signed stays here.")


holds_blp = Pages("holds", "/holds")

_HOLDS = lists.serve(
    holds_blp,
    "holds",
    list_holds,
    shown={"statuses": forms.choices(HoldStatus)},
)


@holds_blp.form("", Role.ADMIN, again=_HOLDS.page)
def place_hold(typed: Input) -> Response:
    """Place a hold."""
    wanted = typed.load(NewHoldSchema)
    given = (wanted["reason"], scope_of(wanted))
    made = forms.do(holds.create, *given, show=holds.represent)
    return rendering.done(".show", "What it covers stays.", hold_id=made["id"])


@holds_blp.page("/<hold_id>", endpoint="show")
def show_hold(hold_id: UUID | None) -> Response:
    """Show one hold."""
    with transaction() as session:
        hold = holds.represent(holds.find(session, caller(), hold_id))
        names = rendering.names_in(session, hold)
    does = ("holds show {hold_id}", "GET /v1/holds/{hold_id}")
    return rendering.page("holds/one", hold=hold, names=names, does=does)


@holds_blp.form("/<hold_id>/release", Role.ADMIN)
def release(hold_id: UUID | None) -> Response:
    """Release a hold."""
    forms.do(holds.release, hold_id)
    return rendering.done(
        ".show", "The hold was released. What no other hold covers expires when its time is over."
    )
