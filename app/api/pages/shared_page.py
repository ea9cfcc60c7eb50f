"""The page of a share link: one record without an API key, as HTML or JSON metadata.

The token is a credential: the page sends no referrer, runs no script, and is neither cached nor
indexed. Revoked, expired and unknown links get the same answer.
"""

import hashlib
from urllib.parse import urlencode

from flask import Response, after_this_request, g, request

from app.api.http import large_work
from app.api.http.answers import answer
from app.api.http.auth import public
from app.api.http.documentation import Blueprint
from app.api.http.services import services
from app.api.pages import private_page
from app.api.resources.records.bundle_access import QUERY, open_link
from app.core import agents, findings, signing_keys
from app.core.records import bundles, records, share_links
from app.core.records.records import RecordSchema
from app.core.records.share_links import Link
from app.errors import NotFound
from app.evidence import bundle, pack
from app.evidence.page.rendering import ShownBundle, shown, shown_findings
from app.models import Record
from app.schemas import fields
from app.schemas.schema import AnswerSchema

blp = Blueprint(
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


@blp.route("/s/<token>", methods=["GET"])
@public
@blp.response(200, SharedRecordSchema)
@blp.doc(responses={200: {"content": {_HTML: {"schema": {"type": "string"}}}}})
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
    return private_page.page(
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
    return private_page.page("shared/dead", 404)


def _wants_json() -> bool:
    return request.accept_mimetypes.best_match([_HTML, _JSON]) == _JSON


def _links(record_id: str, token: str) -> dict[str, str]:
    record = f"{services().settings.base_url}/v1/records/{record_id}"
    query = urlencode({QUERY: token})
    return {name: f"{record}/{path}?{query}" for name, path in _EXPORTS.items()}


def _add_headers(response: Response) -> Response:
    response.headers["Vary"] = "Accept"
    return private_page.add_headers(response)
