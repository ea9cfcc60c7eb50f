"""Pages that a token opens: shared records, and unsubscribing from mails.

A token is a credential: the pages send no referrer, run no script, and are neither cached nor
indexed. Revoked, expired and unknown links get the same answer.

A mail's link needs no API key (RFC 8058). Its GET changes nothing, since mail scanners follow
links; its POST clears the address that the mail went to.
"""

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import urlencode

from flask import Response, after_this_request, g, request
from sqlalchemy.orm import Session

from app.api.http import large_work
from app.api.http.answers import answer
from app.api.http.auth import public
from app.api.http.routes import Routes
from app.api.http.services import reads_objects, request_id, services
from app.api.resources.records.bundle_access import QUERY, open_link
from app.core import agents, findings, signing_keys
from app.core.digests import alerts, letters, schedule
from app.core.digests.letters import Subscription
from app.core.records import bundles, records, share_links
from app.core.records.records import RecordSchema
from app.core.records.share_links import Link
from app.errors import NotFound
from app.evidence import bundle, pack
from app.evidence.page import rendering
from app.evidence.page.rendering import ShownBundle, shown, shown_findings
from app.models import Record
from app.schemas import fields
from app.schemas.schema import AnswerSchema

CONTENT_TYPE = "text/html; charset=utf-8"
_ENVIRONMENT = rendering.environment(Path(__file__).parent / "templates")


def page(template: str, status: int = 200, **shown: object) -> Response:
    """Render a template in the style of these pages."""
    text = _ENVIRONMENT.get_template(f"{template}.html").render(shown)
    return Response(text, status, content_type=CONTENT_TYPE)


def add_headers(response: Response, *, form_action: str = "'none'") -> Response:
    """Keep a response out of caches and indexes; for HTML, set the CSP with `form_action`."""
    response.headers["Cache-Control"] = "private, no-store"
    response.headers["X-Robots-Tag"] = "noindex, nofollow"
    if response.mimetype == "text/html":
        policy = f"{rendering.POLICY}; frame-ancestors 'none'; form-action {form_action}"
        response.headers["Content-Security-Policy"] = policy
    return response


unsubscribe = Routes(
    "unsubscribe",
    __name__,
    url_prefix="/unsubscribe",
    description="Unsubscribing from the digest by the link in each mail.",
)

_PAGE = {200: {"content": {"text/html": {"schema": {"type": "string"}}}}}


@unsubscribe.serves("GET /<token>", public)
@unsubscribe.response(200)
@unsubscribe.doc(responses=_PAGE)
def ask(token: str) -> Response:
    """Show the button that ends the digest

    Reading this page changes nothing.
    """
    if _named(token) is None:
        return _page("dead", 404)
    return _page("ask", 200)


@unsubscribe.serves("POST /<token>", public)
@unsubscribe.response(200)
@unsubscribe.doc(responses=_PAGE)
def end(token: str) -> Response:
    """End the digest (RFC 8058)

    Clears the tenant's `notification_email` if it is still the address that the mail went to, and
    leaves an entry in the audit chain.
    """
    named = _named(token)
    if named is None:
        return _page("dead", 404)
    subscription, end_it = named
    with services().database.transaction(subscription.tenant_id) as session:
        end_it(session, subscription, request_id())
    return _page("done", 200)


def _named(token: str) -> tuple[Subscription, Callable[[Session, Subscription, str], bool]] | None:
    """Return whose mails a token is of, and what ends them: digests, or alerts."""
    for kind, end_it in (("digests", schedule.clear), ("alerts", alerts.leave)):
        found = letters.read_token(services().settings.master_keys, token, kind)
        if found is not None:
            return found, end_it
    return None


def _page(name: str, status: int) -> Response:
    after_this_request(partial(add_headers, form_action="'self'"))
    if name == "dead":
        g.problem = NotFound.slug
    return page(f"unsubscribe/{name}", status)


shared = Routes(
    "shared_page",
    __name__,
    description="The page of a share link, for people and for programs.",
)

_HTML, _JSON = "text/html", "application/json"
_EXPORTS = {
    "bundle": "bundle",
    "prov": "prov.json",
    "otlp_logs": "otlp-logs.json",
    "otlp_traces": "otlp-traces.json",
    "evidence": "evidence.zip",
}
_MOST_OF_FINDINGS = 2**20
_DEAD = "This link opens nothing: it has expired, was revoked, or is not complete."


class LinksSchema(AnswerSchema):
    """Where the record's exports are; each URL holds the link's token."""

    bundle = fields.Text(3000)
    prov = fields.Text(3000)
    otlp_logs = fields.Text(3000)
    otlp_traces = fields.Text(3000)
    evidence = fields.Text(3000)


class SharedRecordSchema(RecordSchema):
    """A record's metadata as its GET answers it, with links to its exports."""

    links = fields.Object(LinksSchema)


@shared.serves("GET /s/<token>", public, SharedRecordSchema)
@shared.doc(responses={200: {"content": {_HTML: {"schema": {"type": "string"}}}}})
def read(token: str) -> Response:
    """Open a share link

    The record as a page, or with `Accept: application/json` its metadata and links to its exports.
    After the bundle's expiry the metadata is still there, and says so.
    """
    after_this_request(_add_headers)
    link = share_links.find_link(services().database, token)
    if link is None:
        return _dead()
    with services().database.transaction(link.tenant_id) as session:
        size = records.shared(session, link.tenant_id, link.record_id).bundle_size
    # Enter the bulkhead before the count and its audit entry: a refused reader opened nothing.
    with large_work.room_for(0 if _wants_json() else size, link.tenant_id):
        return _opened(link)


def _opened(link: Link) -> Response:
    """Count the opening of the link, and answer its record."""
    ends_at = open_link(link)
    if ends_at is None:
        return _dead()
    with services().database.transaction(link.tenant_id) as session:
        record = records.shared(session, link.tenant_id, link.record_id)
        (told,) = records.represent(session, [record])
        links = _links(told["id"], link.token)
        if _wants_json():
            return answer({**told, "links": links})
        pem = signing_keys.public_key(session, record.key_id).pem.decode()
        agent_name = agents.name_at(session, link.tenant_id, record.agent_id, record.created_at)
        listed, total = findings.of_record(session, link.tenant_id, record.id, _MOST_OF_FINDINGS)
    inside, found = view_of(record, agent_name), shown_findings(listed)
    named = {"version": "", "external_id": "", "name": agent_name}
    return page(
        "shared/record",
        record=told,
        agent=named if inside is None else {**named, **inside.agent},
        findings=found,
        more_findings=total - len(found),
        occurred_at=record.occurred_at,
        created_at=record.created_at,
        inside=inside,
        place=None,
        chain=services().settings.signing_chain(record.key_id, record.created_at),
        links=links,
        ends_at=ends_at,
        pem=pem,
        verifier=f"{services().settings.base_url}/verify.py",
        verifier_sha256=hashlib.sha256(pack.verifier_source()).hexdigest(),
    )


@reads_objects
def view_of(record: Record, agent_name: str = "", before: int = 0) -> ShownBundle | None:
    """Return what a page shows of a record's bundle: its steps after so many.

    None once the bundle has expired.
    """
    here = services()
    with here.database.transaction(record.tenant_id) as session:
        raw = bundles.read(session, here.settings.master_keys, record.tenant_id, record.id)
    return None if raw is None else shown(bundle.read(raw, agent_name), before)


def _dead() -> Response:
    if _wants_json():
        raise NotFound(_DEAD)
    g.problem = NotFound.slug
    return page("shared/dead", 404)


def _wants_json() -> bool:
    return request.accept_mimetypes.best_match([_HTML, _JSON]) == _JSON


def _links(record_id: str, token: str) -> dict[str, str]:
    record = f"{services().settings.base_url}/v1/records/{record_id}"
    query = urlencode({QUERY: token})
    return {name: f"{record}/{path}?{query}" for name, path in _EXPORTS.items()}


def _add_headers(response: Response) -> Response:
    response.headers["Vary"] = "Accept"
    return add_headers(response)
