"""The page of a share link: one record without an API key, as HTML or JSON metadata.

The token is a credential: the page sends no referrer, runs no script, and is neither cached nor
indexed. Revoked, expired and unknown links get the same answer.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any
from urllib.parse import urlencode

from flask import Response, after_this_request, g, request

from app.api.http.access.auth import public
from app.api.http.requests import large_bodies
from app.api.http.requests.headers import client_network, request_id
from app.api.http.requests.parsing import Blueprint
from app.api.http.responses.answers import answer
from app.api.http.services import services
from app.api.pages import private_page
from app.api.resources.records.bundle_access import QUERY
from app.core import agents, signing_keys
from app.core.records import anonymous_access, bundles, records
from app.core.records.anonymous_access import Link
from app.core.records.records import RecordSchema
from app.errors import NotFound
from app.evidence import bundle, pack
from app.evidence.bundle import Bundle, Event, Step
from app.lib import indented_json
from app.lib.text_sanitizer import visible
from app.models import Record
from app.schemas import fields
from app.schemas.schema import AnswerSchema

MOST_STEPS = 200
MOST_EVENTS = 20
MOST_NAMES = 50
CONTENT_CHARACTERS = 60_000
DETAIL_CHARACTERS = 2_000
_UNITS = ((3600.0, "h"), (60.0, "min"), (1.0, "s"))


blp = Blueprint(
    "shared_page",
    __name__,
    template_folder="templates",
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


@blp.app_template_filter()
def in_words(time: datetime) -> str:
    """Write a time for people: `31 January 2026, 12:00:00 UTC`."""
    return f"{time.astimezone(UTC):%-d %B %Y, %H:%M:%S} UTC"


blp.app_template_filter("visible")(visible)


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
    link = anonymous_access.find_link(services().database, token)
    if link is None:
        return _dead()
    with services().database.transaction(link.tenant_id) as session:
        size = records.shared(session, link.tenant_id, link.record_id).bundle_size
    # Enter the bulkhead before the count and its audit entry: a refused reader opened nothing.
    with large_bodies.room_for(0 if _wants_json() else size, link.tenant_id):
        return _opened(link)


def _opened(link: Link) -> Response:
    """Count the opening of the link, and answer its record."""
    ends_at = _open(link)
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
    return private_page.page(
        "shared/record",
        record=told,
        agent_name=agent_name,
        occurred_at=record.occurred_at,
        created_at=record.created_at,
        inside=view_of(record),
        links=links,
        ends_at=ends_at,
        pem=pem,
        verifier=f"{services().settings.base_url}/verify.py",
        verifier_sha256=hashlib.sha256(pack.verifier_source()).hexdigest(),
    )


def _open(link: Link) -> datetime | None:
    with services().database.transaction(link.tenant_id) as session:
        return anonymous_access.open_link(session, link, client_network(), request_id())


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


@dataclass(frozen=True)
class Cut:
    """A text to show; `more` says that it was truncated, `is_json` that it is no plain words."""

    text: str
    more: bool
    is_json: bool = True


@dataclass(frozen=True)
class ShownBundle:
    """A bundle's content and steps; `more_steps` is how many are left out."""

    content: Cut
    steps: list[dict[str, Any]]
    more_steps: int


def view_of(record: Record) -> ShownBundle | None:
    """Return what a page shows of a record's bundle; None once the bundle has expired."""
    here = services()
    with here.database.transaction(record.tenant_id) as session:
        raw = bundles.read(session, here.settings.master_keys, record.tenant_id, record.id)
    return None if raw is None else shown(bundle.read(raw))


def shown(read: Bundle) -> ShownBundle:
    """Return what a page shows of a bundle."""
    steps = read["steps"]
    return ShownBundle(
        content=indented(read["content"], CONTENT_CHARACTERS),
        steps=[_step(step) for step in steps[:MOST_STEPS]],
        more_steps=max(len(steps) - MOST_STEPS, 0),
    )


def _step(step: Step) -> dict[str, Any]:
    """Return a step with its times parsed, its duration, and its values truncated.

    `more_events` is how many events are left out.
    """
    events = step["events"]
    started_at, ended_at = map(datetime.fromisoformat, (step["started_at"], step["ended_at"]))
    return {
        **step,
        "started_at": started_at,
        "ended_at": ended_at,
        "took": _duration(ended_at - started_at),
        "inputs": _names(step.get("inputs", [])),
        "outputs": _names(step.get("outputs", [])),
        "attributes": _unless_empty(step["attributes"]),
        "events": [_event(each) for each in events[:MOST_EVENTS]],
        "more_events": max(len(events) - MOST_EVENTS, 0),
    }


def _event(event: Event) -> dict[str, Any]:
    at = datetime.fromisoformat(event["at"])
    return {**event, "at": at, "attributes": _unless_empty(event["attributes"])}


def _names(names: list[str] | dict[str, Any]) -> Cut | None:
    """Show names as a line of them, values by name as JSON."""
    if isinstance(names, dict):
        return _unless_empty(names)
    if not names:
        return None
    cut = _cut(", ".join(islice(names, MOST_NAMES)), DETAIL_CHARACTERS)
    return Cut(cut.text, cut.more or len(names) > MOST_NAMES, is_json=False)


def _unless_empty(value: Mapping[str, Any]) -> Cut | None:
    return indented(value, DETAIL_CHARACTERS) if value else None


def indented(value: Any, most: int) -> Cut:
    """Return JSON, indented, truncated to `most` characters."""
    return _cut(indented_json.beginning(value, most), most)


def _cut(text: str, most: int) -> Cut:
    if len(text) <= most:
        return Cut(visible(text), more=False)
    # At the end of a line, if there is one near.
    kept = text[:most]
    line_end = kept.rfind("\n", most // 2)
    return Cut(visible(kept if line_end < 0 else kept[:line_end]), more=True)


def _duration(took: timedelta) -> str:
    seconds = took.total_seconds()
    for unit, name in _UNITS:
        if seconds >= unit:
            return f"{seconds / unit:.1f} {name}"
    return f"{seconds * 1000:.0f} ms"
