"""Mail over SMTP (RFC 5321) to one relay: one mail a connection, one conversation a process.

All before DATA has half a minute, what follows a minute, TLS included. A server that was away or
hung is left alone for half a minute. Reasons have only numbers of its answers: the words may quote.
"""

import re
import smtplib
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock, Timer

from app.lib.breaker import Breaker
from app.lib.mail.mailer import (
    DATA_SECONDS,
    AnswerLost,
    Busy,
    GoAhead,
    Letter,
    MailServer,
    NotAccepted,
    Refusal,
    Tls,
    Withdrawn,
    Write,
)
from app.lib.outbound import dialing

_OPENING_SECONDS = 30.0
# One address of the server's that does not answer leaves time for others.
_ADDRESSES = 4
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
    """The client of one mail server; safe for the threads of a process."""

    def __init__(
        self,
        server: MailServer,
        helo: str,
        *,
        context: ssl.SSLContext | None = None,
        opening_seconds: float = _OPENING_SECONDS,
        data_seconds: float = DATA_SECONDS,
        break_seconds: float = _BREAK_SECONDS,
    ) -> None:
        """Connect nothing yet. `helo` is this host's name, as the server is told it."""
        self._server = server
        self._helo = helo
        self._context = context or dialing.verifying()
        if context is None and server.tls is Tls.IF_OFFERED:
            # A mail server on this machine usually has a self-signed certificate, and an attacker
            # in between could see everything anyway.
            self._context.check_hostname = False
            self._context.verify_mode = ssl.CERT_NONE
        self._opening_seconds = opening_seconds
        self._data_seconds = data_seconds
        self._free = Lock()
        self._breaker = Breaker(break_seconds)

    def deliver(self, write: Write, go_ahead: GoAhead) -> None:
        """Hand over one letter (`mailer.Mailer`); `Busy` while another is on its way."""
        if not self._free.acquire(blocking=False):
            raise Busy
        try:
            if not self._breaker.admits():
                raise NotAccepted("The mail server did not answer a moment ago.")
            letter = write()
            with self._opened(letter.sender, letter.recipient) as talk:
                self._hand_over(talk, letter, go_ahead)
        finally:
            self._free.release()

    def probe(self, sender: str) -> None:
        """Do all that comes before a recipient, and send nothing. Raises `NotAccepted`."""
        with self._opened(sender):
            pass

    @contextmanager
    def _opened(self, sender: str, recipient: str | None = None) -> Iterator["_Conversation"]:
        """Do all that comes before DATA, where every failure is `NotAccepted`; part afterwards."""
        server, greeted = self._server, False
        talk = _Conversation(server, self._helo, self._context, self._opening_seconds / _ADDRESSES)
        try:
            try:
                with talk.within(self._opening_seconds):
                    _expect(talk.connect(server.host, server.port), "the connection", _READY)
                    self._breaker.succeeded()
                    greeted = True
                    self._introduce(talk, sender)
                    if recipient is not None:
                        answer, of = talk.rcpt(recipient), Refusal.RECIPIENT
                        _expect(answer, "the recipient", _TAKES_IT, _WILL_FORWARD, of=of)
            except (NotAccepted, *_FAILURES) as error:
                late = talk.late.is_set()
                if late or not greeted:
                    self._breaker.failed()
                if isinstance(error, NotAccepted) and not late:
                    raise
                raise _before_data(error, late=late) from error
            yield talk
        finally:
            with talk.within(_FAREWELL_SECONDS):
                talk.part()

    def _introduce(self, talk: "_Conversation", sender: str) -> None:
        """Greet, encrypt, sign in, and name the sender."""
        server = self._server
        talk.ehlo_or_helo_if_needed()
        offered = talk.has_extn("starttls")
        if server.tls is Tls.STARTTLS and not offered:
            # A downgrade attack (STARTTLS stripping) looks the same.
            raise NotAccepted(
                "The mail server offers no STARTTLS; nothing was sent to it.",
                refusal=Refusal.SERVER,
            )
        if offered and server.tls in (Tls.STARTTLS, Tls.IF_OFFERED):
            talk.starttls(context=self._context)
            talk.ehlo_or_helo_if_needed()
        if server.user is not None and server.password is not None:
            talk.login(server.user, server.password)
        _expect(talk.mail(sender), "the sender", _TAKES_IT)

    def _hand_over(self, talk: "_Conversation", letter: Letter, go_ahead: GoAhead) -> None:
        # `go_ahead` records its time, so the time for the content begins before that.
        with talk.within(self._data_seconds):
            if not go_ahead():
                raise Withdrawn
            if talk.late.is_set():
                raise NotAccepted("The attempt was held up before the mail was sent.")
            try:
                code, text, of = talk.content(letter.content)
            except (OSError, smtplib.SMTPException) as error:
                late = talk.late.is_set()
                if late:
                    self._breaker.failed()
                why = "it took too long" if late else _kind(error)
                raise AnswerLost(
                    f"The connection was lost while the mail was on its way ({why})."
                ) from error
        if code in _REFUSALS:
            raise _not_accepted("the mail", code, text, of)
        if code != _TAKES_IT or of is not Refusal.CONTENT:
            raise AnswerLost("The mail server's answer made no sense.")


class _Conversation(smtplib.SMTP):
    """smtplib's dialogue, over a connection that another thread can end.

    A socket's own timeout bounds one read, so a server that drips would never exceed it.
    """

    def __init__(self, server: MailServer, helo: str, context: ssl.SSLContext, each: float) -> None:
        # Without a name smtplib asks the name server. `each` address may use so many seconds.
        super().__init__(local_hostname=helo, timeout=each)
        # By this name smtplib checks the certificate after STARTTLS.
        self._host = server.host
        self._context = context if server.tls is Tls.AT_ONCE else None
        # The same connection, also once TLS has taken the socket over.
        self._connection: socket.socket | None = None
        self.late = threading.Event()

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        sock = socket.create_connection((host, port), timeout)
        self._connection = sock.dup()
        if self.late.is_set():
            raise TimeoutError
        # From now on `within` ends every wait.
        sock.settimeout(None)
        return (
            sock if self._context is None else self._context.wrap_socket(sock, server_hostname=host)
        )

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """End the connection if the block takes longer than `seconds`: what waits for it wakes."""
        timer = Timer(seconds, self._hang_up)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _hang_up(self) -> None:
        self.late.set()
        if self._connection is not None:
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)

    def content(self, content: bytes) -> tuple[int, bytes, Refusal]:
        """Send DATA and the content; return the last answer, and what it is an answer to."""
        try:
            return *self.data(content), Refusal.CONTENT
        except smtplib.SMTPDataError as error:
            # The word DATA itself was answered, and not with "go ahead".
            return error.smtp_code, _bytes(error.smtp_error), Refusal.RECIPIENT

    def part(self) -> None:
        """Say goodbye and close: a courtesy, whose failure means nothing."""
        with suppress(OSError, smtplib.SMTPException):
            if self.sock is not None:
                self.docmd("QUIT")
        self.close()
        if self._connection is not None:
            self._connection.close()


_FAILURES = (OSError, smtplib.SMTPException, ValueError)
_KINDS: tuple[tuple[type[BaseException], str], ...] = (
    (ssl.SSLCertVerificationError, "its certificate is not trusted"),
    (TimeoutError, "it took too long"),
    (ssl.SSLError, "TLS failed"),
    (socket.gaierror, "its name does not resolve"),
    (ConnectionRefusedError, "it refused the connection"),
    (OSError, "the connection broke"),
    (ValueError, "its answer made no sense"),
)


def _before_data(error: Exception, *, late: bool) -> NotAccepted:
    """Return what a failure before DATA says."""
    if late:
        return NotAccepted("The mail server was not reached (it took too long).")
    if isinstance(error, smtplib.SMTPResponseException):
        stage = "the sign-in" if isinstance(error, smtplib.SMTPAuthenticationError) else "to talk"
        return _not_accepted(stage, error.smtp_code, _bytes(error.smtp_error))
    if type(error) in (smtplib.SMTPException, smtplib.SMTPNotSupportedError):
        # Signing in raises these two types themselves, where the server offers no way to.
        text = "The mail server offers no way to sign in that fits."
        return NotAccepted(text, refusal=Refusal.SERVER)
    return NotAccepted(f"The mail server was not reached ({_kind(error)}).")


def _kind(error: BaseException) -> str:
    if isinstance(error, smtplib.SMTPServerDisconnected):
        # smtplib's own cause, if it has one; else the server closed the connection.
        return "it closed the connection" if not error.__context__ else _kind(error.__context__)
    return next((name for kind, name in _KINDS if isinstance(error, kind)), "it did not answer")


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
    of_sender = code in (_NEEDS_SIGN_IN, _OUT_OF_ORDER) or _OF_SENDER.fullmatch(status)
    if of is not Refusal.SERVER and _OF_RECIPIENT.fullmatch(status):
        of = Refusal.RECIPIENT
    elif of is Refusal.RECIPIENT and of_sender:
        of = Refusal.SERVER
    return NotAccepted(
        f"The mail server refused {what} ({f'{code} {status}'.rstrip()}).",
        refusal=of if code in _PERMANENT else None,
        said=f"{code} {text.decode('utf-8', 'replace')}",
    )


def _bytes(text: bytes | str) -> bytes:
    return text if isinstance(text, bytes) else text.encode("ascii", "replace")
