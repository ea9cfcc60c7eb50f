"""Keys: MASTER_KEYS against what is sealed, the keys that sign, and authorities that expire."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.x509 import Certificate
from sqlalchemy.orm import Session

from app.core import signing_keys
from app.core.master_keys import key_registry, status
from app.core.master_keys.sealed_columns import SEALED_COLUMNS
from app.core.signing_keys import Purpose
from app.lib.crypto.sealing import CannotOpen, key_of
from app.manage.doctor import findings
from app.manage.doctor.context import Context
from app.manage.doctor.findings import Finding, NotChecked

_STATUS = "python -m app.manage master-key status"
_SEE = "#a-missing-master-key"
# For all sealed columns together; the large ones come last.
_LOOKING_SECONDS = 8.0
_SOON = timedelta(days=30)


def check(context: Context) -> Iterator[Finding]:
    """Yield keys that are missing or do not open, and authorities that end soon."""
    yield from _authorities(context)
    with context.reading() as session:
        missing = key_registry.missing(session, context.settings.master_keys)
        yield from _signing(context, session)
    if missing:
        yield findings.failed(key_registry.say_missing(missing), _STATUS, see=_SEE)
    yield from _seals(context, known_missing=set(missing))


def _signing(context: Context, session: Session) -> Iterator[Finding]:
    current = [each for each in signing_keys.rows(session) if each.retired_at is None]
    for purpose in Purpose:
        key = next((each for each in current if each.purpose == purpose), None)
        if key is None:
            yield findings.ok(f"no {purpose} key yet: what signs first makes it")
            continue
        try:
            signing_keys.opened(session, context.settings.master_keys, key.key_id)
        except CannotOpen:
            yield findings.failed(
                f"the {purpose} key {key.key_id} does not open under MASTER_KEYS, so nothing is"
                " signed",
                _STATUS,
                see=_SEE,
            )
        else:
            yield findings.ok(f"the {purpose} key {key.key_id} opens")


def _seals(context: Context, *, known_missing: set[str]) -> Iterator[Finding]:
    """Look at the key of each seal, as far as the time goes."""
    seals: Counter[str | None] = Counter()
    passed: list[str] = []
    ends = time.monotonic() + context.patient(_LOOKING_SECONDS)
    for place in SEALED_COLUMNS:
        try:
            with context.reading(max(ends - time.monotonic(), 0.001)) as session:
                for begins, count in status.count_seals(session, place):
                    seals[key_of(begins)] += count
        except NotChecked:
            passed.append(str(place))
    keys = context.settings.master_keys.ids
    lacking = sorted(key for key in seals if key and key not in {*keys, *known_missing})
    for key in lacking:
        yield findings.failed(
            f"{seals[key]} seals are under the master key {key}, which MASTER_KEYS lacks",
            f"put it back; {_STATUS}",
            see=_SEE,
        )
    if seals[None]:
        yield findings.failed(
            f"{seals[None]} values that should be sealed are not: they were changed in the"
            " database",
            _STATUS,
            see=_SEE,
        )
    if passed:
        yield findings.not_checked(f"seals of {', '.join(passed)}: `{_STATUS}` looks at each")
    if not (lacking or known_missing or seals[None]):
        yield findings.ok(f"MASTER_KEYS has the key of each of {seals.total()} seals")


def _authorities(context: Context) -> Iterator[Finding]:
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


def _expiring(setting: str, found: Sequence[Certificate], now: datetime) -> Iterator[Finding]:
    """Say which certificates end soon; that all have ended is a failure."""
    mend = f"put the authority's new certificate into {setting}"
    ended = [each for each in found if each.not_valid_after_utc <= now]
    soon = [each for each in found if now < each.not_valid_after_utc <= now + _SOON]
    for each in (*ended, *soon):
        name, end = each.subject.rfc4514_string(), each.not_valid_after_utc
        text = f"{setting}: {name} is valid until {end:%Y-%m-%d}"
        if len(ended) == len(found):
            yield findings.failed(text, mend, see="#settings")
        else:
            yield findings.warning(text, mend, see="#settings")
    if not ended and not soon:
        first = min(each.not_valid_after_utc for each in found)
        yield findings.ok(f"{setting}: valid until {first:%Y-%m-%d}")
