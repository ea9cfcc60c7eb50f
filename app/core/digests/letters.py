"""A mail of this service: its headers, its two bodies from templates, and its unsubscribe link.

Headers contain no untrusted text and are ASCII; HTML is escaped; bodies are quoted-printable: no
server needs SMTPUTF8 or 8BITMIME.
"""

import base64
from collections.abc import Mapping
from datetime import UTC, datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from app import ids
from app.lib.crypto.sealing import CannotOpen, MasterKeys
from app.lib.mail.mailer import Letter

_SENDER_NAME = "record-service"

# A header over 78 characters without a space would be folded into encoded words, in which mail
# programs do not recognise a URL. 998 characters are allowed (RFC 5322 section 2.1.1).
_UNFOLDED = SMTP.clone(max_line_length=998)

_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=select_autoescape(enabled_extensions=("html",), default=False),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_IDENTITY = "{}/unsubscribe"
_ID_BYTES = 16
_LONGEST = 200


def _at(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%-d %B %Y, %H:%M} UTC"


def of(count: int, one: str) -> str:
    """Write how many there are of what: `1 finding`, `1,204 findings`."""
    return f"{count:,} {one}" if count == 1 else f"{count:,} {one}s"


_TEMPLATES.filters["at"] = _at
_TEMPLATES.globals |= {"of": of, "id_text": ids.text}


class Subscription(NamedTuple):
    """One setting of a tenant's address: the database makes a nonce each time it is set."""

    tenant_id: UUID
    nonce: UUID


def write_token(master_keys: MasterKeys, subscription: Subscription, of: str = "digests") -> str:
    """Return a token of letters, digits, `-` and `_`, different each time; `of` which mails."""
    plain = subscription.tenant_id.bytes + subscription.nonce.bytes
    sealed = master_keys.seal(plain, _IDENTITY.format(of))
    return base64.urlsafe_b64encode(sealed).rstrip(b"=").decode()


def read_token(master_keys: MasterKeys, token: str, of: str = "digests") -> Subscription | None:
    """Return the subscription to mails `of` a kind that a token names; None for any other text."""
    if len(token) > _LONGEST or not token.isascii():
        return None
    try:
        sealed = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        plain = master_keys.open(sealed, _IDENTITY.format(of))
    except (ValueError, CannotOpen):
        return None
    return Subscription(UUID(bytes=plain[:_ID_BYTES]), UUID(bytes=plain[_ID_BYTES:]))


def write(
    name: str,
    template: str,
    data: Mapping[str, Any],
    *,
    subject: str,
    base_url: str,
    token: str,
    sender: str,
    recipient: str,
) -> Letter:
    """Return a mail with the bodies of `template`; `token` is the recipient's to unsubscribe.

    `name` is the same at every attempt, so a second copy can be recognised by its Message-ID. All
    links but that of the token lead through signing in to the console.
    """
    unsubscribe = f"{base_url}/unsubscribe/{token}"
    mail = EmailMessage(policy=SMTP)
    mail["From"] = Address(_SENDER_NAME, addr_spec=sender)
    mail["To"] = Address(addr_spec=recipient)
    mail["Subject"] = subject
    mail["Date"] = format_datetime(datetime.now(UTC))
    mail["Message-ID"] = f"<{name}@{sender.rpartition('@')[2]}>"
    # RFC 3834: no automatic reply.
    mail["Auto-Submitted"] = "auto-generated"
    # RFC 2369 and RFC 8058.
    mail["List-Unsubscribe"] = f"<{unsubscribe}>"
    mail["List-Unsubscribe-Post"] = "List-Unsubscribe=One-Click"
    shown = {"subject": subject, "base_url": base_url, "unsubscribe": unsubscribe, **data}
    text, html = (
        _TEMPLATES.get_template(f"{template}.{kind}").render(shown) for kind in ("txt", "html")
    )
    mail.set_content(text, cte="quoted-printable")
    mail.add_alternative(html, subtype="html", cte="quoted-printable")
    return Letter(name, sender, recipient, mail.as_bytes(policy=_UNFOLDED))
