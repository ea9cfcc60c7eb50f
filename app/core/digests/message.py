"""The mail of a digest: plain text, HTML and headers.

Headers contain no untrusted text; addresses allow no line breaks (`app.lib.mail.mailbox`). HTML is
escaped; in the plain text, untrusted text adds no line of its own. Headers are ASCII and bodies
quoted-printable: no server needs SMTPUTF8 or 8BITMIME.
"""

from datetime import UTC, datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from pathlib import Path
from uuid import UUID

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from app import ids
from app.core.digests.content import Content
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


def _of(count: int, one: str) -> str:
    return f"{count:,} {one}" if count == 1 else f"{count:,} {one}s"


_TEMPLATES.filters["at"] = _at
_TEMPLATES.globals |= {"of": _of, "id_text": ids.text}


def write(
    digest_id: UUID, content: Content, base_url: str, token: str, *, sender: str, recipient: str
) -> Letter:
    """Return the mail of a digest; `token` is the unsubscribe token of the recipient's address.

    All links but that of the token lead through signing in to the console.
    """
    name = ids.text("dig", digest_id)
    unsubscribe = f"{base_url}/unsubscribe/{token}"
    mail = EmailMessage(policy=SMTP)
    mail["From"] = Address(_SENDER_NAME, addr_spec=sender)
    mail["To"] = Address(addr_spec=recipient)
    mail["Subject"] = subject(content)
    mail["Date"] = format_datetime(datetime.now(UTC))
    # The same at every attempt, so a second copy can be recognised.
    mail["Message-ID"] = f"<{name}@{sender.rpartition('@')[2]}>"
    # RFC 3834: no automatic reply.
    mail["Auto-Submitted"] = "auto-generated"
    # RFC 2369 and RFC 8058.
    mail["List-Unsubscribe"] = f"<{unsubscribe}>"
    mail["List-Unsubscribe-Post"] = "List-Unsubscribe=One-Click"
    data = {"content": content, "base_url": base_url, "unsubscribe": unsubscribe}
    text, html = (
        _TEMPLATES.get_template(f"digest.{kind}").render(data) for kind in ("txt", "html")
    )
    mail.set_content(text, cte="quoted-printable")
    mail.add_alternative(html, subtype="html", cte="quoted-printable")
    return Letter(name, sender, recipient, mail.as_bytes(policy=_UNFOLDED))


def subject(content: Content) -> str:
    """Return the subject: numbers and severities, no untrusted text."""
    new = content.total - content.again
    count = _of(new, "new finding") if new else f"{_of(content.again, 'finding')}, listed again"
    worst = next(iter(content.by_severity.items()), None)
    return count if worst is None else f"{count} ({worst[1]:,} {worst[0]})"
