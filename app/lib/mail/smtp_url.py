"""`SMTP_URL`: which mail server takes the mails, and how it is talked to."""

import enum
import ipaddress
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

_FORM = (
    "use smtps://user:password@mail.example.com:465, or smtp://user:password@mail.example.com:587"
)
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
        if parts.query not in ("", "tls=off"):
            raise ValueError("tls=off is the only option it has")
        if parts.scheme == "smtps":
            tls = Tls.AT_ONCE
            if parts.query:
                raise ValueError("smtps: is never without TLS; use smtp: with tls=off")
        elif parts.query:
            tls = Tls.NEVER
        else:
            tls = Tls.IF_OFFERED if here else Tls.STARTTLS
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
