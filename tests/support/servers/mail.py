"""A real mail server (aiosmtpd) that takes mails, or does what mail servers do at their worst."""

import asyncio
import email
import enum
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.policy import default
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from tests.support.servers.ports import own_port


class Mood(enum.Enum):
    """What the server does with the next mail."""

    TAKE = "takes it"
    NO_SENDER = "puts MAIL off"
    BAD_SENDER = "refuses MAIL for good"
    NO_RECIPIENT = "refuses RCPT"
    RECIPIENT_LATER = "puts RCPT off"
    NO_RELAY = "refuses at RCPT whoever it is that sends"
    NO_DATA = "refuses the word DATA"
    NO_CONTENT = "refuses the content after its final dot"
    CONTENT_LATER = "puts the content off after its final dot"
    GONE_BEFORE_DATA = "closes the connection at RCPT"
    GONE_BEFORE_DOT = "closes the connection when told DATA"
    GONE_AFTER_DOT = "takes it, and closes the connection without an answer"
    SLOW = "takes it, and answers too late"


# What became of the mail in truth, and whether its sender can know.
TAKEN = {Mood.TAKE, Mood.GONE_AFTER_DOT, Mood.SLOW}
PUT_OFF = {
    Mood.NO_SENDER,
    Mood.RECIPIENT_LATER,
    Mood.NO_DATA,
    Mood.CONTENT_LATER,
    Mood.GONE_BEFORE_DATA,
}
# For good, because of the service and not of this mail: the operator's to mend.
SERVICE_REFUSED = {Mood.BAD_SENDER, Mood.NO_RELAY}


@dataclass(frozen=True)
class Mail:
    """One mail that the server took."""

    sender: str
    recipient: str
    content: bytes
    at: float

    @property
    def parsed(self) -> EmailMessage:
        return email.message_from_bytes(self.content, policy=default)

    def part(self, kind: str) -> str:
        body = self.parsed.get_body((kind,))
        assert body is not None
        return str(body.get_content())


@dataclass
class Postbox:
    """The server's mails, and how it will behave: its mood is asked for each mail."""

    mood: Callable[[], Mood] = lambda: Mood.TAKE
    mails: list[Mail] = field(default_factory=list)
    signed_in: list[str] = field(default_factory=list)
    port: int = 0
    # What happens in the middle of things: at RCPT, once the content is there, before a refusal.
    at_recipient: Callable[[], object] = lambda: None
    at_content: Callable[[], object] = lambda: None
    at_refusal: Callable[[], object] = lambda: None
    # Says no to some contents, whatever its mood.
    objects_to: Callable[[bytes], bool] = lambda _: False

    def taken(self, mood: Mood) -> None:
        self.mood = lambda: mood

    # What aiosmtpd calls, by names that are its own.

    async def handle_MAIL(  # noqa: N802
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        mood = self.mood()
        vars(envelope)["mood"] = mood
        if mood is Mood.NO_SENDER:
            return "451 4.7.1 greylisted, come again"
        if mood is Mood.BAD_SENDER:
            return "550 5.7.1 not from you"
        envelope.mail_from = address
        return "250 OK"

    async def handle_RCPT(  # noqa: N802
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        mood = _mood(envelope)
        await asyncio.get_running_loop().run_in_executor(None, self.at_recipient)
        if mood is Mood.NO_RECIPIENT:
            return f"550 5.1.1 no {address} here"
        if mood is Mood.RECIPIENT_LATER:
            return "450 4.2.0 greylisted, come again"
        if mood is Mood.NO_RELAY:
            return "554 5.7.1 relay access denied"
        if mood is Mood.GONE_BEFORE_DATA:
            _hang_up(server)
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(  # noqa: N802
        self, server: SMTP, session: Session, envelope: Envelope
    ) -> str:
        mood = _mood(envelope)
        content = envelope.content
        assert isinstance(content, bytes)
        if mood is Mood.CONTENT_LATER:
            return "451 4.7.1 try again later"
        if mood is Mood.NO_CONTENT or self.objects_to(content):
            await asyncio.get_running_loop().run_in_executor(None, self.at_refusal)
            return f"554 5.7.1 {envelope.rcpt_tos[0]}: this looks like spam\x1b"
        assert envelope.mail_from is not None
        mail = Mail(envelope.mail_from, envelope.rcpt_tos[0], content, time.monotonic())
        self.mails.append(mail)
        await asyncio.get_running_loop().run_in_executor(None, self.at_content)
        if mood is Mood.GONE_AFTER_DOT:
            _hang_up(server)
        if mood is Mood.SLOW:
            # It ends with the connection, and holds no thread that others need.
            await asyncio.sleep(30)
        return "250 2.0.0 taken"


def _mood(envelope: Envelope | None) -> Mood:
    mood = vars(envelope)["mood"]
    assert isinstance(mood, Mood)
    return mood


def _hang_up(server: SMTP) -> None:
    assert isinstance(server.transport, asyncio.Transport)
    server.transport.abort()


class _Server(SMTP):
    """aiosmtpd's server, which can also fail between the word DATA and the final dot."""

    async def smtp_DATA(self, arg: str) -> None:  # noqa: N802
        mood = _mood(self.envelope)
        if mood is Mood.NO_DATA:
            refusing = self.event_handler.at_refusal
            await asyncio.get_running_loop().run_in_executor(None, refusing)
            await self.push("452 4.3.1 no room")
        elif mood is Mood.GONE_BEFORE_DOT:
            await self.push("354 go on")
            _hang_up(self)
        else:
            await super().smtp_DATA(arg)


class _Controller(Controller):
    def __init__(self, postbox: Postbox, **options: Any) -> None:
        self._options = options
        at_once = options.pop("tls_at_once", None)
        super().__init__(postbox, hostname="127.0.0.1", port=postbox.port, ssl_context=at_once)

    def factory(self) -> SMTP:
        return _Server(self.handler, hostname="mail.test", timeout=60, **self._options)


@contextmanager
def serving(
    postbox: Postbox | None = None,
    *,
    starttls: ssl.SSLContext | None = None,
    at_once: ssl.SSLContext | None = None,
    password: str | None = None,
) -> Iterator[Postbox]:
    """Run the server for the length of a `with`."""
    postbox = postbox or Postbox()
    postbox.port = postbox.port or own_port()
    options: dict[str, Any] = {"tls_at_once": at_once}
    if starttls is not None:
        options |= {"tls_context": starttls, "require_starttls": True}
    if password is not None:

        def check(
            _server: SMTP, _session: Session, _envelope: Envelope, _how: str, data: Any
        ) -> AuthResult:
            assert isinstance(data, LoginPassword)
            good = data.password == password.encode()
            if good:
                postbox.signed_in.append(data.login.decode())
            return AuthResult(success=good, handled=False)

        options |= {"authenticator": check, "auth_required": True}
    controller = _Controller(postbox, **options)
    controller.start()
    try:
        yield postbox
    finally:
        controller.stop()
