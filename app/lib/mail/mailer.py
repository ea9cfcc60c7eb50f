"""Sending one mail, with a known outcome.

A server may accept a mail only once it is told DATA (RFC 5321 section 4.1.1.4), so the sender is
asked at that moment and can record it. The outcomes: accepted, `NotAccepted`, `AnswerLost`,
`Withdrawn`, `Busy`.
"""

import enum
import ipaddress
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

# From the go-ahead on, the content of a letter is on its way for so long, and then given up. RFC
# 5321 section 4.5.3.2.6 has ten minutes; a worker that is told to stop has 25 seconds.
DATA_SECONDS = 60.0

GoAhead = Callable[[], bool]


@dataclass(frozen=True)
class Letter:
    """One mail: who sends it to whom (bare ASCII addresses), its bytes with CRLF, and its name.

    `name` is the same each time the same mail is sent; it can be part of a file's name.
    """

    name: str
    sender: str
    recipient: str
    content: bytes


Write = Callable[[], Letter]


class Refusal(enum.StrEnum):
    """What a server refuses for good (5xx): the same attempt again would be refused again.

    `SERVER` is sender, sign-in or host, which are the service's; `RECIPIENT` this mail's address;
    `CONTENT` what stands in it.
    """

    SERVER = "server"
    RECIPIENT = "recipient"
    CONTENT = "content"


class NotAccepted(Exception):
    """Nothing was accepted, so the same mail may be sent again. The text says why, without data.

    `refusal` is None where a later attempt may succeed: a 4xx answer, a lost connection. `said`
    has the server's own words, which may quote the mail and its recipient.
    """

    def __init__(
        self, text: str, *, refusal: Refusal | None = None, said: str | None = None
    ) -> None:
        super().__init__(text)
        self.refusal = refusal
        self.said = said


class AnswerLost(Exception):
    """The mail may or may not have been accepted. The text says what happened."""


class Withdrawn(Exception):
    """The sender's `go_ahead` returned False; nothing was accepted."""


class Busy(Exception):
    """Another letter is on its way from this process; nothing was begun."""


class Mailer(Protocol):
    """Hands letters to a mail server, or to what stands in for one."""

    def deliver(self, write: Write, go_ahead: GoAhead) -> None:
        """Hand a letter over, which `write` makes only when it can be handed over now.

        `go_ahead` is asked once, when nothing but the content is missing. Nothing is accepted later
        than `DATA_SECONDS` after that, however long the answer took. Returns when the letter was
        accepted. Raises `NotAccepted`, `AnswerLost`, `Withdrawn`, `Busy`, and whatever `write` and
        `go_ahead` raise, which comes before the content.
        """


class NoServer:
    """Takes nothing: without a mail server letters wait until there is one."""

    def deliver(self, write: Write, go_ahead: GoAhead) -> None:
        """Raise `NotAccepted`."""
        raise NotAccepted("No mail server is set (SMTP_URL).")


class Outbox:
    """Writes each letter into a folder, as a file that mail programs open."""

    def __init__(self, folder: Path) -> None:
        """Make nothing yet; the folder appears with the first letter."""
        self._folder = folder

    def deliver(self, write: Write, go_ahead: GoAhead) -> None:
        """Write `<name>.eml`, whole or not at all; the same letter again replaces it."""
        letter = write()
        if not go_ahead():
            raise Withdrawn
        part = self._folder / f".{letter.name}.part"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            part.touch(mode=0o600)
            with part.open("wb") as file:
                file.write(letter.content)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self._folder / f"{letter.name}.eml")
        except OSError as error:
            raise NotAccepted(f"The mail's file was not written ({error.strerror}).") from error


_FORM = "use smtps://user:password@host:465, or smtp://user:password@host:587"
_PORTS = {"smtp": 587, "smtps": 465}


class Tls(enum.Enum):
    """When the connection is encrypted: from its beginning, by STARTTLS, if offered, or never."""

    AT_ONCE = "at once"
    STARTTLS = "starttls"
    IF_OFFERED = "if offered"
    NEVER = "never"


@dataclass(frozen=True)
class MailServer:
    """A mail server as the setting names it; `user` and `password` are None or both given."""

    host: str
    port: int
    tls: Tls
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, text: str) -> "MailServer":
        """Read the URL. Raises ValueError, quoting nothing of it.

        `smtps:` is TLS from the beginning; `smtp:` insists on STARTTLS, but on this machine takes
        it only if it is offered, and any certificate. `?tls=off` never encrypts, for a relay in a
        network of one's own, and then takes no password, unless on this machine.
        """
        try:
            parts = urlsplit(text)
            # Reading the port refuses one that is no number.
            known = parts.scheme in _PORTS and parts.hostname and (parts.port or 1)
        except ValueError:
            # Its text may quote the password.
            raise ValueError(_FORM) from None
        if not known or parts.path not in ("", "/") or parts.fragment or not text.isascii():
            raise ValueError(_FORM)
        host = parts.hostname or ""
        try:
            here = ipaddress.ip_address(host).is_loopback
        except ValueError:
            here = host == "localhost"
        tls = Tls.IF_OFFERED if here else Tls.STARTTLS
        if parts.scheme == "smtps":
            tls = Tls.AT_ONCE
        elif parts.query == "tls=off":
            tls = Tls.NEVER
        if parts.query and tls is not Tls.NEVER:
            raise ValueError("tls=off is the only option, and of smtp: alone")
        user, password = (_credential(each) for each in (parts.username, parts.password))
        if (user is None) != (password is None):
            raise ValueError("give both a user and a password, or neither")
        if tls is Tls.NEVER and user is not None and not here:
            raise ValueError("with tls=off a password would be sent in clear text")
        return cls(host, parts.port or _PORTS[parts.scheme], tls, user, password)


def _credential(text: str | None) -> str | None:
    if not text:
        return None
    plain = unquote(text, errors="strict")
    if not (plain.isascii() and plain.isprintable()):
        raise ValueError("user and password are printable ASCII, with percent signs where needed")
    return plain
