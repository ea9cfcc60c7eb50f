"""Keys that sign, whether they open, and authorities that expire."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.x509 import Certificate
from sqlalchemy.orm import Session

from app.core import signing_keys
from app.core.health.parts import Part, failed, ok, warning
from app.core.signing_keys import Purpose
from app.lib.crypto.sealing import CannotOpen
from app.manage.doctor.context import Context

_STATUS = "python -m app.manage master-key status"
_SEE = "#a-missing-master-key"
_SOON = timedelta(days=30)


def check(context: Context) -> Iterator[Part]:
    """Yield keys that do not open, and authorities that end soon.

    The part `master_keys` names the keys that MASTER_KEYS lacks; `master-key status` reads each
    seal.
    """
    yield from _authorities(context)
    with context.reading() as session:
        yield from _signing(context, session)


def _signing(context: Context, session: Session) -> Iterator[Part]:
    current = [each for each in signing_keys.rows(session) if each.retired_at is None]
    for purpose in Purpose:
        key = next((each for each in current if each.purpose == purpose), None)
        if key is None:
            yield ok(f"no {purpose} key yet: what signs first makes it")
            continue
        try:
            signing_keys.opened(session, context.settings.master_keys, key.key_id)
        except CannotOpen:
            yield failed(
                f"the {purpose} key {key.key_id} does not open under MASTER_KEYS, so nothing is"
                " signed",
                _STATUS,
                see=_SEE,
            )
        else:
            yield ok(f"the {purpose} key {key.key_id} opens")


def _authorities(context: Context) -> Iterator[Part]:
    settings = context.settings
    now = datetime.fromtimestamp(context.clock(), UTC)
    if settings.tsa_ca_file:
        # An old root stays beside the new one, for old timestamps.
        roots = [each for each in settings.tsa_ca_file if each.subject == each.issuer]
        newest = max(roots, key=lambda each: each.not_valid_after_utc)
        yield from _expiring("TSA_CA_FILE", [newest], now)
    if settings.webhook_ca_file is not None:
        found = x509.load_pem_x509_certificates(settings.webhook_ca_file.encode())
        yield from _expiring("WEBHOOK_CA_FILE", found, now)


def _expiring(setting: str, found: Sequence[Certificate], now: datetime) -> Iterator[Part]:
    """Say which certificates end soon; that all have ended is a failure."""
    mend = f"put the authority's new certificate into {setting}"
    ended = [each for each in found if each.not_valid_after_utc <= now]
    soon = [each for each in found if now < each.not_valid_after_utc <= now + _SOON]
    for each in (*ended, *soon):
        name, end = each.subject.rfc4514_string(), each.not_valid_after_utc
        text = f"{setting}: {name} is valid until {end:%Y-%m-%d}"
        if len(ended) == len(found):
            yield failed(text, mend, see="#settings")
        else:
            yield warning(text, mend, see="#settings")
    if not ended and not soon:
        first = min(each.not_valid_after_utc for each in found)
        yield ok(f"{setting}: valid until {first:%Y-%m-%d}")
