"""A record's evidence pack over HTTP: the ZIP if there is one, else how far its job has come.

A pack is given out in parts, each read in a short transaction of its own: memory does not grow with
it, and a slow reader holds no connection. What fails or expires under way cuts the answer short of
its Content-Length, so nobody takes a part for the whole.
"""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import structlog
from flask import Response, request
from marshmallow import fields as plain
from sqlalchemy.orm import Session

from app import clock, ids
from app.api.http.requests import fields
from app.api.http.requests.parsing import Blueprint
from app.api.http.requests.preferences import PREFER, Patience, patience
from app.api.http.requests.request_ids import request_id
from app.api.http.requests.schemas import Schema
from app.api.http.responses import long_poll, truncated_stream
from app.api.http.responses.conditional import IF_NONE_MATCH, IF_RANGE, RANGE, conditional
from app.api.http.responses.json_responses import answer
from app.api.http.services import services
from app.api.resources.jobs import JobSchema
from app.api.resources.records import bundle_access
from app.api.resources.records.bundle_access import (
    QUERY,
    ShareTokenArgs,
    admission,
    admitted,
    bundle_content,
)
from app.core.callers import Actor, Caller
from app.core.jobs import control as job_control
from app.core.packs import requests as pack_requests
from app.core.packs import store
from app.core.packs.requests import PackState
from app.core.packs.store import StoredPack, Vanished
from app.core.records import contents
from app.database import Database
from app.errors import Busy, PackFailed, PackUnreadable
from app.lib.crypto.sealing import CannotOpen, KeyMissing, MasterKeys
from app.models import Job, Record

blp = Blueprint(
    "evidence_packs",
    __name__,
    url_prefix="/v1/records/<record_id>",
    description="All that proves a record, in one ZIP that needs nobody to check it.",
)

MEDIA_TYPE = "application/zip"
DEFAULT_WAIT = 10.0
_STATE = "x-service-evidence"
_MOST_RETRY_AFTER = 60

_log = structlog.get_logger(__name__)


def _header(description: str, **schema: object) -> dict[str, object]:
    return {"description": description, "schema": {"type": "string"} | schema}


_ZIP = {"type": "string", "format": "binary"}
_APPLIED = {"Preference-Applied": _header("What was done of `Prefer`, if anything was.")}
_PACK_HEADERS = {
    "ETag": _header("The SHA-256 of the ZIP, in hex."),
    "Content-Disposition": _header("The name of the file."),
    _STATE: _header(
        "`current`, or `outdated`: whole and valid, while a better is made.",
        enum=["current", "outdated"],
    ),
    **_APPLIED,
}
_PENDING_HEADERS = {
    "Location": _header("Where to ask again: this URL."),
    "Retry-After": _header("In how many seconds.", pattern="^[0-9]+$"),
    **_APPLIED,
}
_RANGE_HEADERS = {**_PACK_HEADERS, "Content-Range": _header("Which bytes of how many these are.")}


class PendingJobSchema(JobSchema):
    """The job that builds a pack; callers without a key get `status` and `progress` alone."""

    id = fields.Id("job")
    kind = fields.Text(100)
    args = plain.Dict()
    attempts = fields.Integer(0, 2**53 - 1)
    run_at = fields.Time()
    error = fields.Text(10_000, allow_none=True)
    created_at = fields.Time()
    finished_at = fields.Time(allow_none=True)


class PackPendingSchema(Schema):
    """The pack is not there yet; `job` says how far it has come."""

    job = fields.Object(PendingJobSchema, required=True)


@blp.route("/evidence.zip", methods=["GET"], endpoint="evidence")
@bundle_content(public=True)
@blp.arguments(ShareTokenArgs, location="query")
@blp.response(200, _ZIP, content_type=MEDIA_TYPE, headers=_PACK_HEADERS)
@blp.alt_response(
    202,
    schema=PackPendingSchema,
    description="It is being built: come back.",
    headers=_PENDING_HEADERS,
)
@blp.alt_response(
    206,
    schema=_ZIP,
    content_type=MEDIA_TYPE,
    description="The range that was asked for.",
    headers=_RANGE_HEADERS,
)
@blp.alt_response(304, description="The caller has these bytes.")
@blp.alt_response(410, "GONE")
@blp.alt_response(412, "PRECONDITION_FAILED")
@blp.alt_response(416, "REQUESTED_RANGE_NOT_SATISFIABLE")
@blp.alt_response(503, "SERVICE_UNAVAILABLE")
@blp.doc(parameters=[PREFER, IF_NONE_MATCH, RANGE, IF_RANGE])
def read_evidence(args: dict[str, Any], record_id: str) -> Response:
    """Read the evidence pack of a record

    A ZIP that an auditor checks offline with the `verify.py` in it, or better with that of
    `/verify.py`. The first request begins a job that builds it; with a key the answer waits for
    that up to ten seconds, or as `Prefer: wait=N` says. Else, and for share links and public
    records at once, 202 with `Location` (this URL) and `Retry-After`. Few wait at a time: with no
    room to, the 202 comes at once, and without `Preference-Applied`.

    Once there is better evidence (a timestamp, witnesses), a new key or a new release, the pack is
    made anew at the next request; the one before is answered until then, unless `Prefer: wait`
    asks for the better one. After expiry 410.
    """
    try:
        return _asked()
    except _Damaged as damage:
        _discard(services().database, damage.pack)
        raise PackUnreadable("It was changed in the database; another is built.", 1) from None


class _Damaged(Exception):
    """What is stored of a pack is not what was: another is built from the bundle when asked for."""

    def __init__(self, pack: StoredPack) -> None:
        super().__init__(f"pack {pack.id} does not open")
        self.pack = pack


def _asked() -> Response:
    holder = bundle_access.holder()
    settings = services().settings
    with admitted() as (session, record):
        if holder is not None and not holder.may_touch(record.agent_id, record.principal):
            holder = None
        wait = _patience(holder)
        found = pack_requests.ask(session, settings, record)
        job = _worth_waiting_for(found, wait)
        if job is None:
            return _answer(session, record, found, holder, wait)
    waited = _wait_for(job, wait)
    with admitted() as (session, record):
        found = pack_requests.ask(session, settings, record, any_pack=True)
        return _answer(session, record, found, holder, wait, waited=waited)


def _patience(holder: Caller | None) -> Patience:
    """Say how long to wait: only for whoever has a key, since a wait holds a thread of ours."""
    return Patience(0) if holder is None else patience(DEFAULT_WAIT)


def _worth_waiting_for(found: PackState, wait: Patience) -> Job | None:
    """Return the job to wait for: for a first pack, or a better one if that was asked for."""
    wanted = wait.seconds > 0 and (found.pack is None or wait.asked)
    at_it = found.job is not None and found.job.status in ("queued", "running")
    return found.job if wanted and at_it else None


def _wait_for(job: Job, wait: Patience) -> bool:
    """Wait for a job to settle; say whether there was room to."""
    database = services().database

    def settled() -> bool:
        with database.transaction(job.tenant_id) as session:
            return pack_requests.is_settled(session, job.tenant_id, job.id)

    return long_poll.wait_until(settled, wait.seconds)


def _answer(
    session: Session,
    record: Record,
    found: PackState,
    holder: Caller | None,
    wait: Patience,
    *,
    waited: bool = False,
) -> Response:
    if found.pack is not None:
        answered = _zip(session, record, found.pack, holder)
        answered.headers[_STATE] = "current" if found.is_current else "outdated"
    else:
        answered = _pending(found.job, holder)
    # Only what was done (RFC 7240 section 3): who waits for nothing gets 202 before it is there.
    if wait.asked and (waited or (wait.seconds == 0 and answered.status_code == 202)):
        answered.headers["Preference-Applied"] = wait.applied
    return answered


def _pending(job: Job | None, holder: Caller | None) -> Response:
    """Answer that the pack is not there yet, and how far it is; of its job tell only key holders.

    Raises `PackFailed` when nobody is at it any more.
    """
    if job is None:
        raise Busy("The evidence pack has just been replaced; ask again.")
    if job.status == "dead":
        raise PackFailed(
            "The job that builds this record's evidence pack gave up.", ids.text("job", job.id)
        )
    headers = {"Location": _this_url(), "Retry-After": str(_retry_after(job))}
    told = job_control.represent(job)
    if holder is None:
        told = {name: told[name] for name in ("status", "progress")}
    return answer({"job": told}, 202, headers)


def _this_url() -> str:
    """Return where to ask again: with the share token, if that came in the URL."""
    query = request.query_string.decode("ascii", "replace") if QUERY in request.args else ""
    url = services().settings.base_url + request.path
    return f"{url}?{query}" if query else url


def _retry_after(job: Job) -> int:
    """Return the seconds until it may be there: one, but for a job that waits for its next try."""
    if job.status != "retrying":
        return 1
    left = (job.run_at - clock.now()).total_seconds()
    return max(1, min(math.ceil(left), _MOST_RETRY_AFTER))


def _zip(session: Session, record: Record, pack: StoredPack, holder: Caller | None) -> Response:
    master_keys = services().settings.master_keys

    def read(start: int, stop: int) -> Iterator[bytes]:
        first = _first_part(session, master_keys, record, pack, start)
        pack_requests.note_export(session, pack, _taker(holder), request_id())
        database = services().database
        parts = _parts(database, master_keys, pack, (start, stop), first)
        return truncated_stream.short(parts, request_id(), partial(_told, database, pack))

    answered = conditional(pack.sha256.hex(), pack.size, read, MEDIA_TYPE)
    name = f"{ids.text('rec', pack.record_id)}-evidence.zip"
    answered.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return answered


def _told(database: Database, pack: StoredPack, error: Exception) -> bool:
    """Tell of what ends a download under way, and have a damaged pack made anew."""
    if isinstance(error, KeyMissing):
        _log.error("pack_without_key", reason=str(error), **_names(pack))
    elif isinstance(error, CannotOpen):
        _discard(database, pack)
    elif isinstance(error, Vanished):
        _log.info("pack_vanished", **_names(pack))
    return isinstance(error, (CannotOpen, Vanished))


def _taker(holder: Caller | None) -> Actor | None:
    """Return who takes the pack, for the audit chain; None without a key and without a link."""
    if holder is not None:
        return holder.actor()
    link_id = admission().link_id
    return None if link_id is None else Actor("link", ids.text("shr", link_id))


def _first_part(
    session: Session, master_keys: MasterKeys, record: Record, pack: StoredPack, start: int
) -> bytes:
    """Return the part where the answer begins, while it can still be another answer."""
    try:
        return store.read_part(session, master_keys, pack, start // store.PART_BYTES)
    except KeyMissing as error:
        _log.error("pack_without_key", reason=str(error), **_names(pack))
        detail = "It was sealed under a master key that this service does not have now."
        raise PackUnreadable(detail, _MOST_RETRY_AFTER) from None
    except CannotOpen:
        raise _Damaged(pack) from None
    except Vanished:
        contents.require_kept(session, record)
        raise Busy("The evidence pack has just been replaced; ask again.") from None


def _parts(
    database: Database,
    master_keys: MasterKeys,
    pack: StoredPack,
    wanted: tuple[int, int],
    first: bytes,
) -> Iterator[bytes]:
    """Yield the bytes from `start` to `stop`, of which `first` is the part that begins them."""
    start, stop = wanted
    number = start // store.PART_BYTES
    begins = number * store.PART_BYTES
    yield first[start - begins : stop - begins]
    for each in range(number + 1, math.ceil(stop / store.PART_BYTES)):
        with database.transaction(pack.tenant_id) as session:
            part = store.read_part(session, master_keys, pack, each)
        yield part[: stop - each * store.PART_BYTES]


def _names(pack: StoredPack) -> dict[str, str]:
    return {"record": ids.text("rec", pack.record_id), "pack": str(pack.id)}


def _discard(database: Database, pack: StoredPack) -> None:
    _log.error("pack_damaged", **_names(pack))
    with database.transaction(pack.tenant_id) as session:
        store.discard(session, pack.tenant_id, pack.id)
