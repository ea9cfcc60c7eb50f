"""Mail over SMTP (RFC 5321) to one relay: one mail a connection, one conversation a process.

All before DATA has half a minute, what follows a minute, name resolution and TLS included. A server
that was away or hung is left alone for half a minute. Reasons have only numbers of its answers: the
words may quote.
"""

import ipaddress
import re
import smtplib
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Lock

from app.lib.breaker import Breaker
from app.lib.mail.mailer import (
    DATA_SECONDS,
    AnswerLost,
    Busy,
    GoAhead,
    Letter,
    NotAccepted,
    Refusal,
    Withdrawn,
    Write,
)
from app.lib.mail.smtp_url import MailServer, Tls
from app.lib.outbound import deadline_sockets
from app.lib.outbound.addresses import Address
from app.lib.outbound.deadline_sockets import Deadline
from app.lib.outbound.resolver import Resolver, TooManyLookups

OPENING_SECONDS = 30.0
_FAREWELL_SECONDS = 1.0
_BREAK_SECONDS = 30.0

_READY, _TAKES_IT, _WILL_FORWARD = 220, 250, 251
_REFUSALS = range(400, 600)
# RFC 3463: the class and the detail of a status, as most servers begin their text.
_ENHANCED = re.compile(rb"[245]\.\d{1,3}\.\d{1,3}(?=\s|$)")
_PERMANENT = range(500, 600)
# By RFC 3463. Many servers judge host, sender and sign-in only at RCPT (so does Postfix, by
# default), and some learn only from the content's recipient that there is none.
_OF_SENDER = re.compile(r"5\.1\.[78]|5\.[357]\.\d+")
_OF_RECIPIENT = re.compile(r"5\.1\.(?:1|2|3|6|10)|5\.2\.1")
_NEEDS_SIGN_IN, _OUT_OF_ORDER = 530, 503


class Smtp:
    """The door to one mail server; safe for the threads of a process."""

    def __init__(
        self,
        server: MailServer,
        helo: str,
        *,
        context: ssl.SSLContext | None = None,
        opening_seconds: float = OPENING_SECONDS,
        data_seconds: float = DATA_SECONDS,
        break_seconds: float = _BREAK_SECONDS,
    ) -> None:
        """Connect nothing yet. `helo` is this host's name, as the server is told it."""
        self._server = server
        self._helo = helo
        # A mail server on this machine usually has a self-signed certificate, and an attacker in
        # between could see everything anyway.
        verify = server.tls is not Tls.IF_OFFERED
        self._context = context or deadline_sockets.tls_context(verify=verify)
        self._resolver = Resolver()
        self._opening_seconds = opening_seconds
        self._data_seconds = data_seconds
        self._place = Lock()
        self._breaker = Breaker(break_seconds)

    def deliver(self, write: Write, go_ahead: GoAhead) -> None:
        """Hand over one letter (`mailer.Mailer`); `Busy` while another is on its way."""
        if not self._place.acquire(blocking=False):
            raise Busy
        try:
            if not self._breaker.admits():
                raise NotAccepted("The mail server did not answer a moment ago.")
            self._hand_over(write(), go_ahead)
        finally:
            self._place.release()

    def probe(self, sender: str) -> None:
        """Do all that comes before a recipient, and send nothing. Raises `NotAccepted`."""
        until = Deadline(self._opening_seconds)
        talk = _Conversation(self._helo, until)
        try:
            with self._before_data():
                self._open(talk, until)
                _expect(talk.mail(sender), "the sender", _TAKES_IT)
                talk.rset()
        finally:
            _part(talk, until)

    def ready(self) -> bool:
        """Say whether none is on its way, and the server is not left alone for a while."""
        return not self._place.locked() and not self._breaker.is_open()

    def _hand_over(self, letter: Letter, go_ahead: GoAhead) -> None:
        until = Deadline(self._opening_seconds)
        talk = _Conversation(self._helo, until)
        try:
            with self._before_data():
                self._open(talk, until)
                _expect(talk.mail(letter.sender), "the sender", _TAKES_IT)
                answer = talk.rcpt(letter.recipient)
                _expect(answer, "the recipient", _TAKES_IT, _WILL_FORWARD, of=Refusal.RECIPIENT)
            # `go_ahead` records its time, so the time for the content begins before that.
            until.move(self._data_seconds)
            if not go_ahead():
                raise Withdrawn
            if until.is_over():
                raise NotAccepted("The attempt was held up before the mail was sent.")
            with self._watched():
                _data(talk, letter.content)
        finally:
            _part(talk, until)

    @contextmanager
    def _before_data(self) -> Iterator[None]:
        """Raise each failure as `NotAccepted`: before DATA nothing can have been accepted."""
        with _as_not_accepted(), self._watched():
            yield

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Leave the server alone for a while when it hung."""
        try:
            yield
        except Exception as error:
            if _timed_out(error):
                self._breaker.failed()
            raise

    def _open(self, talk: "_Conversation", until: Deadline) -> None:
        server = self._server
        try:
            talk.begin(self._connected(until), server.host)
            if server.tls is Tls.AT_ONCE:
                talk.encrypt(self._context)
            _expect(talk.greeting(), "the connection", _READY)
        except (OSError, smtplib.SMTPException, TooManyLookups, NotAccepted):
            self._breaker.failed()
            raise
        self._breaker.succeeded()
        talk.ehlo_or_helo_if_needed()
        if self._must_encrypt(talk):
            talk.upgrade(self._context)
        if server.user is not None and server.password is not None:
            _sign_in(talk, server.user, server.password)

    def _connected(self, until: Deadline) -> deadline_sockets.BoundSocket:
        return deadline_sockets.connect(self._addresses(until), self._server.port, until)

    def _addresses(self, until: Deadline) -> Sequence[Address]:
        try:
            return [ipaddress.ip_address(self._server.host)]
        except ValueError:
            return self._resolver.resolve(self._server.host, until.left())

    def _must_encrypt(self, talk: "_Conversation") -> bool:
        tls = self._server.tls
        if tls is Tls.STARTTLS and not talk.has_extn("starttls"):
            # A downgrade attack (STARTTLS stripping) looks the same.
            raise NotAccepted(
                "The mail server offers no STARTTLS; nothing was sent to it.",
                refusal=Refusal.SERVER,
            )
        return tls is Tls.STARTTLS or (tls is Tls.IF_OFFERED and talk.has_extn("starttls"))


class _Conversation(smtplib.SMTP):
    """smtplib's dialogue, on a socket of ours that keeps a deadline."""

    def __init__(self, helo: str, until: Deadline) -> None:
        # Without a name smtplib asks the name server, with no limit of time.
        super().__init__(local_hostname=helo, timeout=until.left())

    def begin(self, sock: deadline_sockets.BoundSocket, host: str) -> None:
        """Talk over this socket to the server of this name."""
        self.sock: socket.socket | None = sock
        self._host = host

    def encrypt(self, context: ssl.SSLContext) -> None:
        """Begin TLS on the connection as it is."""
        if not isinstance(self.sock, deadline_sockets.BoundSocket):
            raise smtplib.SMTPServerDisconnected("not connected")
        self.sock = deadline_sockets.encrypt(self.sock, context, self._host)
        self.file = None

    def greeting(self) -> tuple[int, bytes]:
        """Return what the server says first."""
        return self.getreply()

    def upgrade(self, context: ssl.SSLContext) -> None:
        """Begin TLS as RFC 3207 says, and greet again: what was read before it is forgotten."""
        _expect(self.docmd("STARTTLS"), "STARTTLS", _READY)
        self.encrypt(context)
        self.helo_resp = None
        self.ehlo_resp = None
        self.esmtp_features = {}
        self.does_esmtp = False
        self.ehlo_or_helo_if_needed()


def _sign_in(talk: _Conversation, user: str, password: str) -> None:
    try:
        talk.login(user, password)
    except smtplib.SMTPException as error:
        # Only one of a kind of its own says that the server refused, or is gone.
        if type(error) in (smtplib.SMTPException, smtplib.SMTPNotSupportedError):
            raise NotAccepted(
                "The mail server offers no way to sign in that fits.", refusal=Refusal.SERVER
            ) from error
        raise


def _data(talk: _Conversation, content: bytes) -> None:
    of = Refusal.CONTENT
    try:
        code, text = talk.data(content)
    except smtplib.SMTPDataError as error:
        # The word DATA itself was answered, and not with "go ahead".
        code, text, of = error.smtp_code, _bytes(error.smtp_error), Refusal.RECIPIENT
        if code not in _REFUSALS:
            raise AnswerLost("The mail server's answer made no sense.") from error
    except (OSError, smtplib.SMTPException) as error:
        raise AnswerLost(
            f"The connection was lost while the mail was on its way ({_kind(error)})."
        ) from error
    if code in _REFUSALS:
        raise _not_accepted("the mail", code, text, of)
    if code != _TAKES_IT:
        raise AnswerLost("The mail server's answer made no sense.")


def _timed_out(error: BaseException | None) -> bool:
    """Say whether an error is a timeout, or came of one."""
    while error is not None:
        if isinstance(error, TimeoutError):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def _as_not_accepted() -> Iterator[None]:
    try:
        yield
    except smtplib.SMTPResponseException as error:
        stage = "the sign-in" if isinstance(error, smtplib.SMTPAuthenticationError) else "to talk"
        raise _not_accepted(stage, error.smtp_code, _bytes(error.smtp_error)) from error
    except (OSError, smtplib.SMTPException, TooManyLookups, ValueError) as error:
        raise NotAccepted(f"The mail server was not reached ({_kind(error)}).") from error


def _part(talk: _Conversation, until: Deadline) -> None:
    """Say goodbye and close: a courtesy, whose failure means nothing."""
    until.move(_FAREWELL_SECONDS)
    with suppress(OSError, smtplib.SMTPException):
        if talk.sock is not None:
            talk.docmd("QUIT")
    talk.close()


def _expect(
    answer: tuple[int, bytes], what: str, *codes: int, of: Refusal = Refusal.SERVER
) -> None:
    code, text = answer
    if code not in codes:
        raise _not_accepted(what, code, text, of)


def _not_accepted(what: str, code: int, text: bytes, of: Refusal = Refusal.SERVER) -> NotAccepted:
    """Return the error for an answer; `of` is what a permanent one refuses, unless it says more."""
    found = _ENHANCED.match(text)
    status = found[0].decode() if found else ""
    return NotAccepted(
        f"The mail server refused {what} ({f'{code} {status}'.rstrip()}).",
        refusal=_refusal(code, status, of) if code in _PERMANENT else None,
        said=f"{code} {text.decode('utf-8', 'replace')}",
    )


def _refusal(code: int, status: str, of: Refusal) -> Refusal:
    """Return what a permanent answer refuses."""
    if of is not Refusal.SERVER and _OF_RECIPIENT.fullmatch(status):
        return Refusal.RECIPIENT
    of_sender = code in (_NEEDS_SIGN_IN, _OUT_OF_ORDER) or _OF_SENDER.fullmatch(status)
    return Refusal.SERVER if of is Refusal.RECIPIENT and of_sender else of


def _bytes(text: bytes | str) -> bytes:
    return text if isinstance(text, bytes) else text.encode("ascii", "replace")


_KINDS: tuple[tuple[type[BaseException], str], ...] = (
    (ssl.SSLCertVerificationError, "its certificate is not trusted"),
    (TimeoutError, "it took too long"),
    (ssl.SSLError, "TLS failed"),
    (socket.gaierror, "its name does not resolve"),
    (ConnectionRefusedError, "it refused the connection"),
    (OSError, "the connection broke"),
    (ValueError, "its answer made no sense"),
)


def _kind(error: BaseException) -> str:
    if isinstance(error, smtplib.SMTPServerDisconnected):
        # smtplib's own cause, if it has one; else the server closed the connection.
        return "it closed the connection" if not error.__context__ else _kind(error.__context__)
    return next((name for kind, name in _KINDS if isinstance(error, kind)), "it did not answer")
