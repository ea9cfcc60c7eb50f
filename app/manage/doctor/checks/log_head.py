"""The transparency log: its head outside the database, what is stored of it, and what halts it."""

from collections.abc import Iterator

from app.core.log import generations, publication
from app.core.log.generations import Generation
from app.core.log.head import head_guard, head_store
from app.core.verification import alerts, daily
from app.errors import LogDamaged, LogHalted, LogHeadLost, LogHeadUnavailable, LogRolledBack
from app.manage.doctor import findings
from app.manage.doctor.context import Context
from app.manage.doctor.findings import Finding

_STATUS = "python -m app.manage log status"
_MENDED = {
    LogRolledBack.slug: "restore the newest database, or its own LOG_HEAD_URL; only if that is"
    " lost: python -m app.manage log succeed --yes",
    LogHeadLost.slug: "put the head back, or: python -m app.manage log adopt --yes",
    LogHeadUnavailable.slug: "let this host read and write LOG_HEAD_URL",
    LogDamaged.slug: "python -m app.manage log rebuild",
}


def check(context: Context) -> Iterator[Finding]:
    """Yield what keeps the log from signing, then what a verification found."""
    store = head_store.opened(context.settings.log_head_url)
    head, readable = None, store is not None
    try:
        head = None if store is None else store.read()
    except LogHalted as error:
        readable = False
        yield _halted(error.slug, error.detail)
    with context.reading() as session:
        generation = generations.newest(session)
        if generation is None:
            yield findings.ok("the log has not begun: the first integration begins it")
        else:
            last = publication.newest(session, generation)
            try:
                if last is not None:
                    head_guard.check_stored(session, last)
                if readable:
                    head_guard.judge(session, generation, head)
                size = 0 if last is None else last.checkpoint.size
                yield from _standing(generation, size, has_head=readable)
            except LogHalted as error:
                yield _halted(error.slug, error.detail)
        keys = context.settings.master_keys
        found = [alerts.standing(session), daily.standing(session, keys)]
    for text in filter(None, found):
        yield findings.failed(
            f"audit chains: {text}",
            "make now NAME=verify_audit, or python -m scheduler now verify_audit",
            see="#an-audit-chain-is-broken",
        )


def _standing(generation: Generation, size: int, *, has_head: bool) -> Iterator[Finding]:
    if generation.trouble is not None:
        yield _halted(generation.trouble, "a worker found so, and signs nothing")
    elif has_head:
        yield findings.ok(f"{size} leaves are published, and the head outside agrees")
    else:
        yield findings.ok(f"{size} leaves are published; no head was compared")


def _halted(slug: str, detail: str) -> Finding:
    see = "#damage-of-the-log" if slug == LogDamaged.slug else "#the-log-signs-nothing"
    return findings.failed(f"{slug}: {detail}", _MENDED.get(slug, _STATUS), see=see)
