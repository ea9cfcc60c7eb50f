"""The parts of `/readyz`, each with its probe: the one table that every renderer reads.

A probe reads stored data in a session that sees every tenant, and yields what it finds.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from sqlalchemy.orm import Session

from app import heartbeats
from app.core import epochs
from app.core.anchoring import anchors as anchoring_status
from app.core.anchoring import incidents
from app.core.anchoring.evidence import Chooser
from app.core.blobs import store
from app.core.digests import schedule
from app.core.erasure import erasing
from app.core.health.parts import Part, State, failed, ok
from app.core.log import generations, history, publication
from app.core.log import status as log_status
from app.core.master_keys import key_registry
from app.core.verification import alerts, daily
from app.database import database_now
from app.errors import LogDamaged, LogHeadLost, LogHeadUnavailable, LogRolledBack, Unavailable
from app.ledger.notes import Malformed
from app.lib.mail.mailer import Refusal
from app.settings import Settings

Probe = Callable[[Session, Settings], Iterator[Part]]

# What `/readyz` calls degraded, in its order; the console begins a sentence on it so.
NEEDED: Final = {
    "database_writes": "The database refuses every write",
    "redis": "Redis is away",
    "worker": "No worker runs",
    "scheduler": "No scheduler runs",
    "master_keys": "MASTER_KEYS lacks a key that something is sealed under",
    "history": "A part of what was accepted is lost",
    "log": "The transparency log signs nothing",
    "anchoring": "Anchoring fails",
    "audit": "Verification of the audit chains",
    "mail": "Digests are not sent",
    "objects": "The object store",
}
# These are told and never missed.
FACTS: Final = ("log_head", "anchored_by")

_EFFECTS: Final = {
    "redis": "deliveries start some seconds late",
    "worker": "what is accepted waits to be sent",
    "scheduler": "retries and jobs wait longer",
}
_UNVERIFIABLE = "The audit chain cannot be verified against the transparency log now: {}."
UNKNOWN_AUDIT: Final = "Whether the audit chain holds is not known now ({})."
_LATE = "not verified as a whole"
_OBJECTS = "#the-object-store"
_LOG_MENDS: Final = {
    LogRolledBack.slug: "restore the newest database, or its own LOG_HEAD_URL; only if that is"
    " lost: python -m app.manage log succeed --yes",
    LogHeadLost.slug: "put the head back, or: python -m app.manage log adopt --yes",
    LogHeadUnavailable.slug: "let this host read and write LOG_HEAD_URL",
    LogDamaged.slug: "python -m app.manage log rebuild",
}


def redis_and_roles(
    presence: Mapping[heartbeats.Role, bool] | None, why: str | None = None
) -> Iterator[Part]:
    """Yield the parts `redis`, `worker` and `scheduler`, from heartbeats; None without Redis."""
    if presence is not None:
        yield ok("it answers", name="redis")
        yield from roles(presence)
        return
    yield _away("redis", "bring Redis back; an empty one will do", why)
    for role in heartbeats.ROLES:
        yield Part(State.NOT_CHECKED, "unknown", name=role)


def roles(presence: Mapping[heartbeats.Role, bool]) -> Iterator[Part]:
    """Yield the parts `worker` and `scheduler`."""
    for role, is_up in presence.items():
        if is_up:
            yield ok("a heartbeat within 15 s", name=role)
        else:
            mend = f"start the Procfile's `{role}`, or read its last lines"
            yield _away(role, mend, "no heartbeat for 15 s")


def _away(name: str, mend: str, why: str | None) -> Part:
    banner = f"{NEEDED[name]}: {_EFFECTS[name]}."
    see = "#readyz-says-degraded"
    return failed("away", mend, see, detail=why, banner=banner, name=name)


def halted(slug: str, detail: str | None = None) -> Part:
    """Return the part of a log that signs nothing, or is damaged, by the slug of its problem."""
    see = "#damage-of-the-log" if slug == LogDamaged.slug else "#the-log-signs-nothing"
    mend = _LOG_MENDS.get(slug, "python -m app.manage log status")
    return failed(slug, mend, see, detail=detail)


def _log(session: Session, _: Settings) -> Iterator[Part]:
    """Yield what halts or damages the log."""
    generation = generations.newest(session)
    if generation is not None and generation.trouble is not None:
        found = halted(generation.trouble)
        yield replace(found, banner=_UNVERIFIABLE.format(found.reason))
    elif alerts.log_is_damaged(session):
        # The part `audit` says where.
        yield halted(LogDamaged.slug)


def _history(session: Session, _: Settings) -> Iterator[Part]:
    """Yield what was lost of the history, until an operator accepts that."""
    now = epochs.present(session)
    if not now.accepted:
        yield failed(
            f"rolled back: {now.name}",
            "restore the newest database, or accept the loss:"
            " python -m app.manage log succeed --yes",
            "#a-part-of-the-history-is-lost",
            since=now.began_at,
            detail=history.said(now),
            banner=f"{NEEDED['history']}: receivers are told where to begin.",
        )


def head(settings: Settings) -> Part:
    """Return whether the log's head is kept outside the database."""
    text = "kept" if settings.log_head_url else log_status.NO_HEAD
    return ok(text, name="log_head")


def _anchored_by(session: Session, settings: Settings) -> Iterator[Part]:
    """Yield who vouches for the log, and for how many of its leaves."""
    generation = generations.newest(session)
    policy, trusted = settings.witness_policy, settings.tsa_ca_file
    try:
        last = None if generation is None else publication.newest(session, generation)
        reach = None if last is None else Chooser(session, last, policy, trusted).reach()
    except Malformed:
        yield ok("Unknown: the stored log data is damaged.")
        return
    yield ok(anchoring_status.of_log(reach, anchoring_status.others_asked(settings)))


def _anchoring(session: Session, _: Settings) -> Iterator[Part]:
    """Yield the parts of anchoring that fail, alarms first."""
    for each in incidents.rows(session):
        if each.alarm:
            state, reason, see = State.FAILED, f"ALARM: {each.part}", "#a-witness-alarm"
            mend = "find the other log: a copy of this database, or a restored one"
        else:
            state, reason, see = State.WARNING, each.part, "#something-is-not-anchored"
            mend = "make now NAME=stamp_checkpoint, or python -m scheduler now stamp_checkpoint"
        reason = f"{reason}: unanchored"
        yield Part(state, reason, mend, see, since=each.since, detail=each.detail)


def _audit(session: Session, settings: Settings) -> Iterator[Part]:
    """Yield which chains are broken, and since when not all of them were verified."""
    mend = "make now NAME=verify_audit, or python -m scheduler now verify_audit"
    see = "#an-audit-chain-is-broken"
    found = alerts.open_breaks(session)
    for what, text in found.items():
        if what == alerts.LOG:
            banner = _UNVERIFIABLE.format(text.removesuffix("."))
            yield failed(f"not verified: {text}", mend, see, banner=banner)
        else:
            yield failed(text, mend, see=see)
    since = daily.unverified_since(session, settings.master_keys)
    if since is not None and database_now(session) - since >= daily.OVERDUE:
        detail = (
            "see that a worker is up, look for audit_chain_not_verified and job_step_failed in its"
            " log, and ring verify_audit"
        )
        late = failed(_LATE, mend, see, since=since, detail=detail)
        yield replace(late, banner=f"The audit chain was not verified lately. It was {late.text}.")


def _master_keys(session: Session, settings: Settings) -> Iterator[Part]:
    """Yield the keys that MASTER_KEYS lacks."""
    missing = key_registry.missing(session, settings.master_keys)
    if missing:
        mend = "python -m app.manage master-key status"
        yield failed(key_registry.say_missing(missing), mend, see="#a-missing-master-key")


def _mail(session: Session, settings: Settings) -> Iterator[Part]:
    """Yield why digests do not go out; a refused recipient is its tenant's to mend."""
    waiting = 0 if settings.takes_mail else schedule.open_ones(session)
    if waiting:
        reason = f"SMTP_URL is not set: {waiting} digests wait"
        yield failed(reason, "set SMTP_URL and MAIL_FROM", see="setup.md#the-digest")
    for each in schedule.standing(session) if settings.takes_mail else ():
        if each.what == Refusal.RECIPIENT:
            continue
        since = None
        if each.what == Refusal.CONTENT:
            reason = (
                f"the mail server refused the content of {each.digests} digests, also without the"
                " findings' words"
            )
        else:
            reason = f"{each.digests} digests wait"
            since = None if each.what == Refusal.SERVER else each.since
        mend, see = "have the mail server take what MAIL_FROM sends", "#a-digest-does-not-arrive"
        yield failed(reason, mend, see, since=since, detail=each.error)


def unerased(session: Session, settings: Settings) -> Iterator[Part]:
    """Yield what should be gone from the store for an hour, and is not; nothing without a store."""
    since = erasing.late_since(session)
    if since is not None and settings.blob_url is None:
        mend = "set BLOB_URL to the store that has them"
        yield failed("objects are to be erased, and BLOB_URL names no store", mend, see=_OBJECTS)
    elif since is not None and database_now(session) - since > erasing.LATE:
        mend = "bring the store back, or let BLOB_URL's credentials delete: the job tries again"
        reason = "what has expired is not erased"
        yield failed(reason, mend, _OBJECTS, since=since)


def objects_reached(settings: Settings) -> Iterator[Part]:
    """Yield whether the store answers; nothing without one. With no transaction open."""
    blobs = store.of(settings.blob_url)
    if blobs is None:
        return
    try:
        blobs.check()
    except Unavailable:
        banner = "The object store is away: what lies there cannot be read now."
        mend = "bring the store back; until then bundles go into the database"
        yield failed("away", mend, _OBJECTS, banner=banner)
    else:
        yield ok("it answers")


OF_DATABASE: Final[Mapping[str, Probe]] = {
    "history": _history,
    "log": _log,
    "anchoring": _anchoring,
    "anchored_by": _anchored_by,
    "audit": _audit,
    "master_keys": _master_keys,
    "mail": _mail,
}


def degraded(parts: Iterable[Part]) -> list[str]:
    """Return the names of parts without which effects wait, in the order of `NEEDED`.

    The database is never among them: without it no request can be served.
    """
    bad = {each.name for each in parts if not each.is_ok}
    return [name for name in NEEDED if name in bad]


def texts(parts: Iterable[Part]) -> dict[str, str]:
    """Return what `/readyz` says of each part: "up", or what is wrong with it."""
    said: dict[str, list[str]] = {}
    for each in parts:
        told = said.setdefault(each.name, [])
        if not each.is_ok or each.name in FACTS:
            told.append(each.text)
    return {name: "; ".join(told) or "up" for name, told in said.items()}
