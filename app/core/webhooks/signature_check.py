"""The signature debugger: reports which check of a pasted request fails, and the likely mistake.

It compares the signature with those of each known secret over the bytes sent, and over contents
that receivers verify by mistake. Pasted requests are neither stored nor logged.
"""

import hmac
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import product
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core.callers import Caller
from app.core.delivery.history import delivery_history
from app.core.webhooks import webhook_secrets, webhooks
from app.database import database_now
from app.lib.crypto import webhook_signing as forms
from app.lib.crypto.sealing import CannotOpen
from app.lib.crypto.webhook_signing import ID, OURS, STANDARD, TIMESTAMP, Form
from app.models import Webhook
from app.settings import Settings

TOLERANCE_SECONDS = 300
# Whether a check passed, None where nothing can be said; and a sentence.
_Verdict: TypeAlias = tuple[bool | None, str]
_EVER = datetime.fromisoformat("0001-01-01T00:00:00+00:00")
_MOST_OTHERS, _MOST_SECRETS_OF_ANOTHER = 200, 3
# Bytes of content that are hashed with other webhooks' secrets: a body of 50 KB with all of them.
_MOST_HASHED = 64 * 1024 * 1024


@dataclass(frozen=True)
class Pasted:
    """A request as received; `received_at` is by the receiver's clock, None means now."""

    headers: Mapping[str, str]
    body: bytes
    received_at: datetime | None = None


@dataclass(frozen=True)
class _Known:
    """A secret that may have signed the request; `fault` says why it should not have."""

    text: str
    name: str
    fault: str | None = None
    own: bool = True


@dataclass(frozen=True)
class _Match:
    """A secret, form of its key, and form of the content that yield the request's signature."""

    known: _Known
    key: str | None
    content: str | None


def check(
    session: Session, caller: Caller, settings: Settings, webhook_id: UUID | None, pasted: Pasted
) -> dict[str, Any]:
    """Return `valid`, the result of each check, and one sentence of advice.

    Raises `NotFound` when the webhook does not exist.
    """
    webhook = webhooks.find(session, caller, webhook_id).webhook
    headers = forms.normalised(pasted.headers)
    now = database_now(session)
    event_id = ids.parse("evt", headers.get(ID, ""))
    sent = None
    if event_id is not None:
        sent = delivery_history.payload_of(session, caller.tenant_id, event_id)
    found = _match(headers, pasted.body, sent, _known(session, settings, webhook, now))
    checks = {
        "headers": _headers(headers),
        "timestamp": _timestamp(headers, pasted.received_at or now),
        "secret": _secret(headers, found, pasted.body == sent),
        "body": _body(found, pasted.body, sent),
        "encoding": _encoding(headers),
    }
    valid = all(ok for ok, _ in checks.values())
    advice = _VERIFIES if valid else _UNDECIDED
    # The last that failed here is the cause of the others.
    for name in ("timestamp", "secret", "body", "encoding", "headers"):
        if checks[name][0] is False:
            advice = f"{checks[name][1]} {_REMEDIES[name]}"
    told = [{"name": name, "ok": ok, "detail": detail} for name, (ok, detail) in checks.items()]
    return {"valid": valid, "checks": told, "advice": advice}


def _known(
    session: Session, settings: Settings, webhook: Webhook, now: datetime
) -> Iterator[_Known]:
    """Yield this webhook's secrets, newest first, then those of the tenant's newest others."""
    others = (
        select(Webhook)
        .where(Webhook.tenant_id == webhook.tenant_id, Webhook.id != webhook.id)
        .order_by(Webhook.id.desc())
        .limit(_MOST_OTHERS)
    )
    for each in (webhook, *session.scalars(others)):
        own, name = each is webhook, ids.text("whk", each.id)
        try:
            kept = webhook_secrets.open_secrets(
                settings.master_keys, each.sealed_secrets, each.tenant_id, each.id, _EVER
            )
        except CannotOpen:
            if own:
                raise
            continue
        for place, secret in enumerate(kept if own else kept[:_MOST_SECRETS_OF_ANOTHER]):
            if not own:
                yield _Known(secret.text, f"a secret of {name}", "another webhook", own=False)
            elif secret.until is not None and secret.until <= now:
                ended = f"an older secret of this webhook, which ended at {rfc3339(secret.until)}"
                yield _Known(secret.text, ended, ended)
            elif place:
                until = rfc3339(secret.until) if secret.until else "now"
                yield _Known(secret.text, f"an older secret, which signs until {until}")
            else:
                yield _Known(secret.text, "the newest secret")


def _match(
    headers: Mapping[str, str], body: bytes, sent: bytes | None, secrets: Iterator[_Known]
) -> _Match | None:
    """Find the combination that yields a signature of the request: correct, or with one mistake."""
    digests = [each.digest for each in forms.signatures(headers) if each.digest]
    stamps = forms.timestamps(headers)
    if not digests or not stamps or ID not in headers:
        return None
    right = [Form(f"{headers[ID]}.{at}.".encode() + body, None) for at in stamps]
    if sent is not None and sent != body:
        changed = "the body is not as it was sent"
        right += [Form(f"{headers[ID]}.{at}.".encode() + sent, changed) for at in stamps]
    own: list[_Known] = []
    for known, tried in _tries(right, secrets, own):
        if (found := _matching(known, tried, right, digests)) is not None:
            return found
    # Each of these may be large, and is made once for all secrets.
    for content in forms.mistaken(headers[ID], stamps, body):
        for known in own:
            key = next(forms.keys(known.text))
            if (found := _matching(known, [key], [content], digests)) is not None:
                return found
    return None


def _tries(
    right: Sequence[Form], secrets: Iterable[_Known], own: list[_Known]
) -> Iterator[tuple[_Known, list[Form]]]:
    """Yield secrets with the keys to try, and gather this webhook's own.

    Of other webhooks only as many are tried as `_MOST_HASHED` bytes of content allow.
    """
    size = sum(len(each.value) for each in right)
    left = _MOST_HASHED
    for known in secrets:
        if known.own:
            own.append(known)
            yield known, list(forms.keys(known.text))
            continue
        left -= size
        if left < 0:
            return
        yield known, [next(forms.keys(known.text))]


def _matching(
    known: _Known, keys: Iterable[Form], contents: Iterable[Form], digests: Sequence[bytes]
) -> _Match | None:
    for key, content in product(keys, contents):
        made = hmac.digest(key.value, content.value, "sha256")
        if any(hmac.compare_digest(made, digest) for digest in digests):
            return _Match(known, key.mistake, content.mistake)
    return None


def _headers(headers: Mapping[str, str]) -> _Verdict:
    missing = [name for name in (ID,) if not headers.get(name)]
    if not headers.get(STANDARD) and not headers.get(OURS):
        missing.append(f"{STANDARD} (or {OURS})")
    if not forms.timestamps(headers):
        missing.append(TIMESTAMP)
    if missing:
        return (False, f"Missing: {', '.join(missing)}.")
    return (True, "The id, a timestamp and a signature are there.")


def _timestamp(headers: Mapping[str, str], received_at: datetime) -> _Verdict:
    stamps = forms.timestamps(headers)
    if not stamps:
        return (None, "There is no timestamp.")
    if len(stamps) > 1:
        return (False, f"{TIMESTAMP} and t= in {OURS} differ.")
    if not (stamps[0].isascii() and stamps[0].isdigit()):
        return (False, f"{TIMESTAMP} is no number of seconds.")
    if len(stamps[0]) > 11:
        return (False, f"{TIMESTAMP} is not in seconds; in milliseconds, maybe.")
    age = round(received_at.timestamp()) - int(stamps[0])
    way = "before" if age >= 0 else "after"
    age_text = f"It was signed {abs(age)} s {way} it was received"
    if abs(age) > TOLERANCE_SECONDS:
        return (False, f"{age_text}; receivers allow {TOLERANCE_SECONDS} s.")
    return (True, f"{age_text}, within the {TOLERANCE_SECONDS} s that are allowed.")


def _secret(headers: Mapping[str, str], found: _Match | None, as_sent: bool) -> _Verdict:
    if found is None:
        if not any(each.digest for each in forms.signatures(headers)) or ID not in headers:
            return (None, "There is no signature that could be compared.")
        if as_sent:
            return (False, "The body is as it was sent, but no secret known matches.")
        return (False, "No secret of this tenant gives this signature.")
    if found.known.fault or found.key:
        wrong = [found.key] if found.key else []
        wrong += [f"it is signed with {found.known.name}"] if found.known.fault else []
        return (False, _sentence("; ".join(wrong)))
    return (True, f"It is signed with {found.known.name}.")


def _body(found: _Match | None, body: bytes, sent: bytes | None) -> _Verdict:
    if found is not None and found.content is None:
        return (True, "The signature is of exactly these bytes.")
    if found is not None and (sent is None or sent == body):
        return (False, _sentence(found.content or ""))
    if sent is None:
        return (None, "No event with this webhook-id is kept to compare it with.")
    if body == sent:
        return (True, "It is byte for byte what was sent.")
    return (False, _difference(body, sent))


def _encoding(headers: Mapping[str, str]) -> _Verdict:
    given = list(forms.signatures(headers))
    faults = list(dict.fromkeys(each.fault for each in given if each.fault))
    if faults:
        return (False, _sentence("; ".join(faults)))
    if not given:
        return (None, "There is no signature.")
    return (True, "Each signature is well-formed.")


def _difference(body: bytes, sent: bytes) -> str:
    """Say how a body differs from the one that was sent, without quoting either."""
    if body.removeprefix(b"\xef\xbb\xbf") == sent:
        return "A byte-order mark was put before the body."
    if body.strip() == sent:
        return "White space was put around the body, such as a line break at its end."
    pairs = enumerate(zip(body, sent, strict=False))
    at = next((place for place, (one, other) in pairs if one != other), min(len(body), len(sent)))
    sizes = f"it differs from byte {at} on, and has {len(body)} bytes of {len(sent)} sent"
    try:
        same = json.loads(body) == json.loads(sent)
    except (ValueError, RecursionError):
        same = False
    if same:
        return f"The same JSON, parsed and written anew: {sizes}."
    return f"Another body than was sent: {sizes}."


_VERIFIES = (
    "This request verifies. A receiver that refuses it has another secret, or verifies other bytes "
    "than the raw body: HMAC-SHA256 over webhook-id.webhook-timestamp.body, keyed by the base64 "
    "after whsec_, decoded."
)
_UNDECIDED = "Nothing is wrong with what could be checked; paste the whole request, as it came."
_REMEDIES = {
    "headers": "Paste every header; if the request lacks them, a proxy removes them.",
    "encoding": f"{STANDARD} is `v1,` and base64, {OURS} `t=…,v2=` and hex in lower case.",
    "body": "Verify the raw bytes of the request, before anything parses or changes them.",
    "secret": "Use this webhook's newest secret: the HMAC key is the base64 after whsec_, decoded. "
    "A lost secret is replaced by rotate-secret.",
    "timestamp": "Set the receiver's clock (NTP). A request that is pasted later is old: send "
    "received_at with it.",
}


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
