"""The mail server: connection, TLS, sign-in and sender; no mail is sent."""

from collections.abc import Iterator

from app.lib.mail.mailer import NotAccepted
from app.lib.mail.smtp import Smtp
from app.manage.doctor import findings
from app.manage.doctor.context import Context
from app.manage.doctor.findings import Finding

_SECONDS = 10.0


def check(context: Context) -> Iterator[Finding]:
    """Yield whether a digest would be taken, as far as to its recipient."""
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
            see="#a-digest-does-not-arrive",
        )
    else:
        yield findings.ok(f"{where} takes mails from {settings.mail_from}")
