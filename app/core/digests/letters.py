"""A mail of this service: its headers, and its two bodies from templates.

Headers contain no untrusted text and are ASCII; HTML is escaped; bodies are quoted-printable: no
server needs SMTPUTF8 or 8BITMIME.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from app import ids
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


def _at(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%-d %B %Y, %H:%M} UTC"


def of(count: int, one: str) -> str:
    """Write how many there are of what: `1 finding`, `1,204 findings`."""
    return f"{count:,} {one}" if count == 1 else f"{count:,} {one}s"


_TEMPLATES.filters["at"] = _at
_TEMPLATES.globals |= {"of": of, "id_text": ids.text}


def write(
    name: str,
    subject: str,
    template: str,
    data: Mapping[str, Any],
    *,
    sender: str,
    recipient: str,
) -> Letter:
    """Return a mail with the bodies of `template`; `data` has its link to `unsubscribe`.

    `name` is the same at every attempt, so a second copy can be recognised by its Message-ID.
    """
    mail = EmailMessage(policy=SMTP)
    mail["From"] = Address(_SENDER_NAME, addr_spec=sender)
    mail["To"] = Address(addr_spec=recipient)
    mail["Subject"] = subject
    mail["Date"] = format_datetime(datetime.now(UTC))
    mail["Message-ID"] = f"<{name}@{sender.rpartition('@')[2]}>"
    # RFC 3834: no automatic reply.
    mail["Auto-Submitted"] = "auto-generated"
    # RFC 2369 and RFC 8058.
    mail["List-Unsubscribe"] = f"<{data['unsubscribe']}>"
    mail["List-Unsubscribe-Post"] = "List-Unsubscribe=One-Click"
    text, html = (
        _TEMPLATES.get_template(f"{template}.{kind}").render(data) for kind in ("txt", "html")
    )
    mail.set_content(text, cte="quoted-printable")
    mail.add_alternative(html, subtype="html", cte="quoted-printable")
    return Letter(name, sender, recipient, mail.as_bytes(policy=_UNFOLDED))
