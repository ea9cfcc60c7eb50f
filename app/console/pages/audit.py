"""The audit chain: its entries, verification, anchors, and export as a file."""

from typing import Any

from flask import Blueprint, url_for
from werkzeug.wrappers import Response

from app import ids
from app.api.http.access.auth import caller
from app.api.http.paging import PageArgs, filters, page_of
from app.api.http.transactions import transaction
from app.api.resources.audit import audit_exports
from app.api.resources.audit.anchors import anchor_reader, anchoring
from app.api.resources.audit.audit import AuditArgs, key_names, verify_now
from app.api.resources.audit.verification_schemas import VerifyArgs
from app.console.frame import forms, rendering
from app.console.frame.access import signed_in
from app.core.audit import view
from app.core.callers import Role
from app.errors import AuditChainBroken, Invalid, LogHalted
from app.models import Job

blp = Blueprint("audit", __name__, url_prefix="/audit")


@blp.get("")
@signed_in(Role.READ, whole_tenant=True)
def index() -> Response:
    """List entries, newest first, as the URL filters them."""
    typed = forms.query()
    found: dict[str, Any] = {"data": [], "next_cursor": None}
    names: dict[str, str] = {}
    broken: AuditChainBroken | None = None
    with transaction() as session:
        try:
            args = typed.load(AuditArgs)
            found = page_of(
                args,
                lambda *where: view.rows(session, caller(), filters(args), *where),
                view.represent,
                lambda entry: entry.seq,
            )
            targets = (each["target"] for each in found["data"])
            named = ({"agent_id": each["id"]} for each in targets if each["type"] == "agent")
            names = key_names(session, found["data"]) | rendering.names_in(session, *named)
        except Invalid as wrong:
            typed = typed.refused(wrong)
        except AuditChainBroken as error:
            broken = error
    return rendering.page(
        "audit/list",
        typed=typed,
        found=found,
        names=names,
        broken=broken,
        orders=[(view.Order.DESCENDING.value, "newest"), (view.Order.ASCENDING.value, "oldest")],
        does=("audit list", "GET /v1/audit"),
    )


@blp.post("/verify")
@signed_in(Role.READ, whole_tenant=True)
def verify() -> Response:
    """Verify the chain now, and show the report."""
    does = ("audit verify", "GET /v1/audit/verify")
    try:
        found = verify_now(forms.sent().load(VerifyArgs))
    except (AuditChainBroken, LogHalted) as error:
        return rendering.page("audit/verified", 409, broken=error, found=None, does=does)
    if isinstance(found, Job):
        text = "The chain is long, so a job verifies it. Its progress is the report in the end."
        return rendering.done(url_for("console.jobs.show", job_id=ids.text("job", found.id)), text)
    return rendering.page("audit/verified", broken=None, found=found, does=does)


@blp.post("/export")
@signed_in(Role.READ, whole_tenant=True)
def export() -> Response:
    """Send the whole chain as NDJSON, and append an entry that records the export."""
    answered = audit_exports.answer()
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
