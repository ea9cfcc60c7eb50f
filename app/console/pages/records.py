"""Records: search, the page of one with its steps, proofs, files and share links; findings."""

from typing import Any
from uuid import UUID

from flask import url_for
from werkzeug.exceptions import NotFound
from werkzeug.wrappers import Response

from app.api.http import large_work
from app.api.http.services import caller, services, transaction
from app.api.pages.private_pages import view_of
from app.api.resources.findings import list_findings
from app.api.resources.records import bundle_access, bundles, evidence_packs
from app.api.resources.records.records import list_records
from app.api.resources.records.share_links import NewShareLinkSchema
from app.console.frame import forms, lists, rendering
from app.console.frame.access import Pages
from app.console.pages.deliveries import known_webhooks, webhook_names
from app.core import feeds, findings
from app.core.callers import Role
from app.core.delivery.history import delivery_list, event_history
from app.core.delivery.history.delivery_list import Filters
from app.core.findings import Severity, Source
from app.core.records import activity, holds, records, share_links, statements
from app.core.records.records import RecordSchema
from app.database import database_now
from app.evidence.page.rendering import MOST_STEPS
from app.models import Finding
from app.schemas import fields
from app.schemas.schema import Schema

blp = Pages("records", "/records", whole_tenant=False)

_MOST_LINKS = 200
_MOST_HOLDS, _MOST_FINDINGS = 10, 20
_LIFETIMES = (("3600", "1 hour"), ("86400", "1 day"), ("604800", "7 days"), ("2592000", "30 days"))


lists.serve(
    blp,
    "records",
    list_records,
    row=RecordSchema,
)


@blp.page("/<record_id>")
def show(record_id: UUID | None) -> Response:
    """Show one record."""
    return _page(record_id)


@blp.page("/<record_id>/files/<name>")
def download(record_id: UUID | None, name: str) -> Response:
    """Send one of the record's files, as the API does."""
    bundle_access.admit(caller(), record_id)
    if name == "evidence.zip":
        return rendering.taken(evidence_packs.pack, url_for(".show", record_id=record_id))
    if name != "bundle.json" and name not in bundles.FORMATS:
        raise NotFound
    answered = bundles.exact_bytes() if name == "bundle.json" else bundles.export(name)
    return rendering.attached(answered)


@blp.form("/<record_id>/share-links", Role.ADMIN)
def share(record_id: UUID | None) -> Response:
    """Create a share link, and show its URL on this page only."""
    wanted = forms.sent().load(NewShareLinkSchema)
    lifetime = wanted["expires_in_seconds"]
    base_url = services().settings.base_url
    made = forms.do(share_links.mint, record_id, lifetime, base_url)
    return _page(record_id, made)


@blp.form("/<record_id>/share-links/<share_link_id>/revoke", Role.ADMIN)
def revoke(record_id: UUID | None, share_link_id: UUID | None) -> Response:
    """Revoke a share link."""
    forms.do(share_links.revoke, record_id, share_link_id)
    return rendering.done(".show", "The link opens nothing any more.", _anchor="share-links")


class StepArgs(Schema):
    """The page of a record's steps."""

    steps = fields.QueryInteger(
        0, 10**7, load_default=0, description="How many steps come before the first one shown."
    )


def _page(record_id: UUID | None, link: dict[str, Any] | None = None) -> Response:
    typed = forms.query()
    before = typed.load_filters(StepArgs)["steps"]
    with transaction() as session:
        found = records.find(session, caller(), record_id)
        of_record = {"record_id": found.id}
        few = session.scalars(feeds.newest(Finding, caller(), of_record, None, _MOST_FINDINGS))
        told = [findings.represent(each) for each in few]
        (record,) = records.represent(session, [found])
        now = database_now(session)
        links = [
            share_links.represent(row, now)
            for row in share_links.active_first(session, found, _MOST_LINKS)
        ]
        names = rendering.names_in(session, record)
        place = statements.place_of(session, found)
        covered = (found.id, found.session_id, found.agent_id)
        held = holds.standing_on(
            session, caller(), _MOST_HOLDS, *covered, created_at=found.created_at
        )
    with large_work.room_for(found.bundle_size, caller().tenant_id):
        inside = None if record["bundle"]["expired"] else view_of(found, before=before)
    if inside is not None:
        bundle_access.note_content_read(caller(), found.id)
    return rendering.page(
        "records/one",
        record=record,
        typed=typed,
        findings=told,
        in_session=place,
        inside=inside,
        chain=services().settings.signing_chain(found.key_id, found.created_at),
        names=names,
        held=held,
        blank=forms.blank(),
        links=links,
        made=link,
        lifetimes=_LIFETIMES,
        page_of_steps=MOST_STEPS,
        does=("records show {record_id}", "GET /v1/records/{record_id}"),
    )


findings_blp = Pages("findings", "/findings", whole_tenant=False)

lists.serve(
    findings_blp,
    "findings",
    list_findings,
    files=True,
    beside=lambda session, _, found: {
        "occurred": activity.occurred(session, caller(), found["data"])
    },
    shown={
        "severities": forms.choices(reversed(Severity)),
        "sources": forms.choices(Source),
    },
)


@findings_blp.page("/<finding_id>", endpoint="show")
def show_finding(finding_id: UUID | None) -> Response:
    """Show one finding, and what became of its event at every webhook."""
    event: dict[str, Any] | None = None
    webhooks: dict[str, dict[str, Any]] = {}
    with transaction(snapshot=True) as session:
        finding = findings.find(session, caller(), finding_id)
        found = findings.represent(finding)
        names = rendering.names_in(session, found)
        occurred = activity.occurred(session, caller(), [found])
        if caller().pin is None:
            webhooks = known_webhooks(session)
            wanted = Filters(finding_id=finding.id)
            for event_id in delivery_list.events_of(session, caller().tenant_id, wanted) or ():
                told = event_history.find(session, caller(), event_id)
                event = event_history.describe(session, told)
    return rendering.page(
        "findings/one",
        finding=found,
        event=event,
        names=names,
        occurred=occurred,
        webhooks=webhook_names(webhooks),
        may_see_rules=caller().pin is None,
        does=("findings show {finding_id}", "GET /v1/findings/{finding_id}"),
    )
