"""The mail server: connection, TLS, sign-in and sender; no mail is sent. And refused digests."""

from collections.abc import Iterator

from app.core.digests import troubles
from app.lib.mail.mailer import NotAccepted, Refusal
from app.lib.mail.smtp import Smtp
from app.manage.doctor import findings
from app.manage.doctor.context import Context
from app.manage.doctor.findings import Finding

_SECONDS = 10.0
_SECTION = "#a-digest-does-not-arrive"


def check(context: Context) -> Iterator[Finding]:
    """Yield whether a digest would be taken, as far as to its recipient, and what refuses some."""
    yield from _server(context)
    if not context.settings.takes_mail:
        return
    with context.reading() as session:
        found = troubles.read(session)
    for sentence in troubles.of_operator(found):
        yield findings.failed(
            sentence, "have the mail server take what MAIL_FROM sends", see=_SECTION
        )
    refused = troubles.counted(found)[Refusal.RECIPIENT]
    if refused:
        yield findings.warning(
            f"the mail server refuses the recipients of {refused} digests",
            "have those tenants change notification_email",
            see=_SECTION,
        )


def _server(context: Context) -> Iterator[Finding]:
    settings = context.settings
    server = settings.smtp_url
    if server is None:
        fate = "wait" if settings.mail_folder is None else "become files"
        yield findings.ok(f"SMTP_URL is not set: digests, if any, {fate}")
        return
    where = f"{server.host}:{server.port}"
    try:
        domain = settings.mail_from.rpartition("@")[2]
        seconds = context.patient(_SECONDS)
        Smtp(server, domain, opening_seconds=seconds).probe(settings.mail_from)
    except NotAccepted as error:
        yield findings.failed(
            f"{where}: {error}",
            "correct SMTP_URL and MAIL_FROM, and let this host reach the server",
            see=_SECTION,
        )
    else:
        yield findings.ok(f"{where} takes mails from {settings.mail_from}")
