"""Evidence packs over HTTP: the ZIP if it is built, else the progress of its build job.

A ZIP is streamed part by part, each read in a short transaction of its own, so memory does not grow
with the pack and a slow reader holds no connection.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import structlog
from flask import Response, request
from sqlalchemy.orm import Session

from app import clock, ids
from app.api.http import admission
from app.api.http.admission import LONGEST_WAIT_WITHOUT_KEY, Patience, patience, truncated_stream
from app.api.http.answers import answer, conditional
from app.api.http.documentation import PREFER, Blueprint, header_of
from app.api.http.routes import Routes
from app.api.http.services import (
    client_address,
    client_network,
    reads_objects,
    request_id,
    services,
)
from app.api.resources.records import bundle_access
from app.api.resources.records.bundle_access import (
    QUERY,
    ShareTokenArgs,
    admitted,
    bundle_content,
    granted,
    note_read,
)
from app.core.blobs import reading
from app.core.blobs import store as blob_store
from app.core.blobs.reading import Vanished
from app.core.callers import Actor, Caller
from app.core.jobs import control as job_control
from app.core.jobs.control import JobSchema
from app.core.packs import pack_requests, store
from app.core.packs.building import Subject
from app.core.packs.pack_requests import PackState
from app.core.packs.store import Pack
from app.core.packs.subjects import RecordSubject
from app.database import Database
from app.errors import Busy, PackFailed, PackUnreadable, RateLimited, Unavailable
from app.lib.crypto.sealing import CannotOpen, KeyMissing
from app.models import Job
from app.schemas import fields
from app.schemas.schema import AnswerSchema

MEDIA_TYPE = "application/zip"
LONGEST_RETRY_AFTER = 60

_log = structlog.get_logger(__name__)

blp = Routes(
    "evidence_packs",
    __name__,
    url_prefix="/v1/records/<record_id>",
    description="All evidence of a record, in one ZIP that is verified offline.",
)

DEFAULT_WAIT = 10.0
STATE = "x-service-evidence"


ZIP = {"type": "string", "format": "binary"}
_APPLIED = {"Preference-Applied": header_of("The preference of `Prefer` that was applied, if any.")}
PACK_HEADERS = {
    "ETag": header_of("The SHA-256 of the ZIP, in hex."),
    "Content-Disposition": header_of("The name of the file."),
    STATE: header_of(
        "`current`, or `outdated`: complete and valid, while a better pack is built.",
        enum=["current", "outdated"],
    ),
    **_APPLIED,
}
PENDING_HEADERS = {
    "Location": header_of("The URL to poll: this URL."),
    "Retry-After": header_of("Seconds until the next poll.", pattern="^[0-9]+$"),
    **_APPLIED,
}


class PendingJobSchema(JobSchema):
    """The job that builds a pack; callers without a key get `status` and `progress` alone."""

    optional = JobSchema().fields.keys() - {"status", "progress"}
    kind = fields.Text(100)


class PackPendingSchema(AnswerSchema):
    """The pack is not built yet; `job` has the progress."""

    job = fields.Object(PendingJobSchema)


_View: TypeAlias = Callable[..., Response]


def answers_a_pack(blp: Blueprint) -> Callable[[_View], _View]:
    """Document a route that answers a pack: whole, a range of it, or that it is being built."""

    def documented(view: _View) -> _View:
        for document in (
            blp.alt_response(
                202,
                schema=PackPendingSchema,
                description="The pack is being built: poll again.",
                headers=PENDING_HEADERS,
            ),
            blp.alt_response(409, "CONFLICT"),
            blp.sends_bytes(ZIP, ZIP, PACK_HEADERS, MEDIA_TYPE, PREFER),
        ):
            view = document(view)
        return view

    return documented


@blp.serves(
    "GET /evidence.zip",
    bundle_content(public=True),
    args=ShareTokenArgs,
    errors=(410,),
    endpoint="evidence",
)
@answers_a_pack(blp)
def read_evidence(args: dict[str, Any], record_id: UUID | None) -> Response:
    """Read the evidence pack of a record

    A ZIP that an auditor verifies offline with the `verify.py` in it or, better, with that of
    `/verify.py`. The first request starts a job that builds it. A request with a key waits for the
    job up to ten seconds, or as `Prefer: wait=N` says; one with a share link or without a key waits
    only if `Prefer` says so. Until it is built, the answer is 202 with `Location` (this URL) and
    `Retry-After`. Few may wait at a time; others get 202 at once, without `Preference-Applied`.

    After better evidence (a timestamp, cosignatures), a new finding, the session's end, a new key
    or a new release, the next request starts a new build. The old pack is answered until it ends,
    unless `Prefer: wait` asks for the new one. After the bundle's expiry the answer is 410.
    """
    return pack()


def pack() -> Response:
    """Answer the admitted record's evidence pack or its build's progress; raises as the route."""
    return note_read(answer_pack(_opened), granted().record_id)


class Asked(NamedTuple):
    """An admitted request for a pack: of what it is, who asks with a key, and who is audited."""

    session: Session
    subject: Subject
    holder: Caller | None
    taker: Actor | None


@contextmanager
def _opened() -> Iterator[Asked]:
    """Open the transaction of a request for a record's pack."""
    holder, link_id = bundle_access.holder(), granted().link_id
    with admitted() as (session, record):
        if holder is not None and not holder.may_touch(record.agent_id, record.principal):
            holder = None
        link = None if link_id is None else Actor("link", ids.text("shr", link_id))
        taker = link if holder is None else holder.actor()
        yield Asked(session, RecordSubject(session, record), holder, taker)


class _Damaged(Exception):
    """A stored pack was changed; it is discarded once the transaction that found out is over."""

    def __init__(self, pack: Pack) -> None:
        super().__init__(pack.about.text)
        self.pack = pack


@reads_objects
def answer_pack(opened: Callable[[], AbstractContextManager[Asked]]) -> Response:
    """Answer a pack, or the progress of its build after waiting for it; raises as the route."""
    try:
        return _answered(opened)
    except _Damaged as error:
        _discard(services().database, error.pack)
        raise PackUnreadable("It was changed in the database; another is built.", 1) from None


def _answered(opened: Callable[[], AbstractContextManager[Asked]]) -> Response:
    settings = services().settings
    if not admission.has_waited():
        with opened() as asked:
            wait = _patience(asked.holder)
            found = pack_requests.ask(asked.session, settings, asked.subject)
            job = _worth_waiting_for(found, wait)
            if job is None:
                return _answer(asked, found, wait)
        with suppress(RateLimited):
            if (dropped := _wait_for(job, wait, asked.holder)) is not None:
                return dropped
    with opened() as asked:
        found = pack_requests.ask(asked.session, settings, asked.subject, any_pack=True)
        return _answer(asked, found, _patience(asked.holder))


def _patience(holder: Caller | None) -> Patience:
    """Return how long to wait: without a key only if asked to."""
    return patience(0, LONGEST_WAIT_WITHOUT_KEY) if holder is None else patience(DEFAULT_WAIT)


def _worth_waiting_for(found: PackState, wait: Patience) -> Job | None:
    """Return the job to wait for, if any: a first pack's, or a better one's if `Prefer` asks."""
    wanted = wait.seconds > 0 and (found.pack is None or wait.applied != "")
    at_it = found.job is not None and found.job.status in ("queued", "running")
    return found.job if wanted and at_it else None


def _wait_for(job: Job, wait: Patience, holder: Caller | None) -> Response | None:
    """Wait for a job to settle, as `admission.wait` does."""
    database = services().database

    def settled() -> bool:
        with database.transaction(job.tenant_id) as session:
            return pack_requests.is_settled(session, job.tenant_id, job.id)

    keyless = admission.keyless_bounds(job.tenant_id, client_network())
    counted = keyless if holder is None else admission.bounds(holder)
    return admission.wait(counted, settled, wait.seconds)


def _answer(asked: Asked, found: PackState, wait: Patience) -> Response:
    if found.pack is not None:
        answered = _send(asked, found.pack)
        answered.headers[STATE] = "current" if found.is_current else "outdated"
    else:
        answered = _pending(found.job, asked.holder)
    # Only an applied one (RFC 7240 section 3): not to wait was applied if this is a 202.
    waited = admission.has_waited()
    if wait.applied and (waited or (wait.seconds == 0 and answered.status_code == 202)):
        answered.headers["Preference-Applied"] = wait.applied
    return answered


def _pending(job: Job | None, holder: Caller | None) -> Response:
    """Answer 202 with the job's progress; only callers with a key get all of the job.

    Raises `PackFailed` for a dead job, and `Busy` without a job.
    """
    if job is None:
        raise Busy("The evidence pack has just been replaced; ask again.")
    if job.status == "dead":
        raise PackFailed("The job that builds this evidence pack gave up.", ids.text("job", job.id))
    headers = {"Location": _this_url(), "Retry-After": str(_retry_after(job))}
    told = job_control.represent(job)
    if holder is None:
        told = {name: told[name] for name in ("status", "progress")}
    return answer({"job": told}, 202, headers)


def _this_url() -> str:
    """Return the URL to poll, with the share token if the request's URL has it."""
    query = request.query_string.decode("ascii", "replace") if QUERY in request.args else ""
    url = services().settings.base_url + request.path
    return f"{url}?{query}" if query else url


def _retry_after(job: Job) -> int:
    """Return the seconds until the next poll: one, or more for a job that waits for its retry."""
    if job.status != "retrying":
        return 1
    left = (job.run_at - clock.now()).total_seconds()
    return max(1, min(math.ceil(left), LONGEST_RETRY_AFTER))


def _send(asked: Asked, pack: Pack) -> Response:
    """Answer a pack or a range. Raises `PackUnreadable`, `Busy` or `BundleExpired`."""
    here = services()

    def read(start: int, stop: int) -> Iterator[bytes]:
        first = _first_part(asked, pack, start)
        taken_by = (asked.taker, request_id(), client_address())
        pack_requests.note_export(asked.session, pack, *taken_by)
        parts = chain([first[: stop - start]], _parts(pack, start + len(first), stop))
        return truncated_stream(parts, request_id(), partial(_told, here.database, pack))

    answered = conditional(pack.sha256.hex(), pack.size, read, MEDIA_TYPE)
    name = f"{pack.about.text}-evidence.zip"
    answered.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return answered


def _told(database: Database, pack: Pack, error: Exception) -> bool:
    """Log the error that ends a download, and discard a damaged pack; return if it is known."""
    if isinstance(error, KeyMissing):
        _log.error("pack_without_key", reason=str(error), **pack.names)
    elif isinstance(error, CannotOpen):
        _discard(database, pack)
    elif isinstance(error, Vanished):
        _log.info("pack_deleted", **pack.names)
    return isinstance(error, (CannotOpen, Vanished, Unavailable))


def _parts(pack: Pack, start: int, stop: int) -> Iterator[bytes]:
    """Yield the bytes of a pack between two places, each part read in a transaction of its own."""
    here = services()

    def read(at: int) -> tuple[int, bytes]:
        with here.database.transaction(pack.about.tenant_id) as session:
            return store.read_part(session, here.settings.master_keys, pack, at)

    return reading.stream(blob_store.of(here.settings.blob_url), read, start, stop)


def _first_part(asked: Asked, pack: Pack, start: int) -> bytes:
    """Return the bytes from `start` to the end of their part, while an error can be answered."""
    try:
        begin, part = store.read_part(asked.session, services().settings.master_keys, pack, start)
        return part[start - begin :]
    except KeyMissing as error:
        _log.error("pack_without_key", reason=str(error), **pack.names)
        detail = "It was sealed under a master key that this service does not have now."
        raise PackUnreadable(detail, LONGEST_RETRY_AFTER) from None
    except CannotOpen:
        raise _Damaged(pack) from None
    except Vanished:
        asked.subject.require_kept(asked.session)
        raise Busy("The evidence pack has just been replaced; ask again.") from None


def _discard(database: Database, pack: Pack) -> None:
    """Delete a damaged pack; the next request starts a new build."""
    _log.error("pack_damaged", **pack.names)
    with database.transaction(pack.about.tenant_id) as session:
        store.discard(session, pack)
