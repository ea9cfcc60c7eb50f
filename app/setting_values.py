"""Parsers of the settings' texts; a ValueError (or OSError) says what to write instead."""

import codecs
import ipaddress
import re
import ssl
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TypeVar
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from app.ledger.notes import check_name
from app.ledger.policy import Policy
from app.lib.crypto import api_keys
from app.lib.mail import mailbox as mailboxes
from app.lib.outbound.addresses import (
    EVERYWHERE,
    NAT64_PREFIX_LENGTHS,
    BadURL,
    Network,
    parse_url,
)

_Value = TypeVar("_Value")
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_CERTIFICATES = re.compile(r"-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----")
MIB = 1024 * 1024
# Query parameters that the settings replace; a client's own certificate stays.
_HOW_VERIFIED = ("ssl_cert_reqs", "ssl_ca_", "ssl_check_hostname")
# A scheme and what follows it (RFC 9110, 11.4): one line of visible ASCII.
_AUTHORIZATION = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+ +[!-~](?:[ -~]*[!-~])?")


def redis_tls_verify(text: str) -> bool:
    """Read whether the certificate of Redis is verified."""
    if text not in ("full", "none"):
        raise ValueError("use full, or none to take any certificate")
    return text == "full"


def redis_with_tls(url: str | None, authorities: str | None, *, verified: bool) -> str | None:
    """Return the address of a Redis with the TLS options of redis-py for its certificate.

    `authorities` is PEM. Without TLS the address is left as it is. Raises `ValueError` for
    `authorities` without `verified`, which contradict each other.
    """
    if not verified and authorities is not None:
        raise ValueError("REDIS_TLS_VERIFY=none would ignore REDIS_CA_FILE: set one of them")
    if url is None or not url.startswith("rediss") or (verified and authorities is None):
        return url
    bare, _, query = url.partition("?")
    kept = [pair for pair in parse_qsl(query) if not pair[0].startswith(_HOW_VERIFIED)]
    how = ("ssl_ca_data", authorities) if verified else ("ssl_cert_reqs", "none")
    return f"{bare}?{urlencode([*kept, how])}"


def api_key(text: str) -> str:
    """Read the text of an API key."""
    if not api_keys.well_formed(text):
        raise ValueError("make one with `python -m app.manage generate root-admin-key`")
    return text


def base_url(text: str) -> str:
    """Read the address that callers see, without a slash at its end."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
        raise ValueError("use the address callers see, such as https://records.example.com")
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))


def origin(text: str) -> str:
    """Read the log's origin (C2SP tlog-checkpoint): a URL without scheme, valid as a key's name."""
    if "://" in text:
        raise ValueError("leave the scheme out: records.example.com/log")
    return check_name(text)


def objects_url(text: str, *, names_object: bool = False) -> str:
    """Read the URL of a folder or bucket for objects; with `names_object` that of one of them."""
    parts = urlsplit(text)
    if parts.query or parts.fragment:
        raise ValueError("it has no query and no fragment")
    path = unquote(parts.path)
    named = bool(path.strip("/")) and not (parts.scheme == "file" and path.endswith("/"))
    if named or not names_object:
        if parts.scheme == "s3" and parts.netloc:
            return text
        if parts.scheme == "file" and not parts.netloc and path.startswith("/"):
            if names_object and not Path(path).parent.is_dir():
                raise ValueError(f"no folder {Path(path).parent}")
            return text
    which = "file:///folder/file or s3://bucket/key"
    raise ValueError(f"use {which if names_object else 'file:///folder or s3://bucket/prefix'}")


def operator_url(text: str) -> str:
    """Read the address of a service that the operator chose: any network will do."""
    try:
        parse_url(text, EVERYWHERE)
    except BadURL as error:
        raise ValueError(error.detail) from None
    return text


def authority_url(text: str) -> str:
    """Read the address of a timestamp authority; a login has a setting of its own."""
    if "@" in urlsplit(text).netloc:
        raise ValueError("it holds a login: set TSA_AUTHORIZATION, and leave the login out here")
    return operator_url(text)


def issuer(text: str) -> str:
    """Read the issuer of an OpenID provider: `https:`, but for one on this machine."""
    parts = urlsplit(operator_url(text))
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError("an issuer is a URL without login, query or fragment")
    if parts.scheme != "https" and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
        raise ValueError("use https: (OpenID Connect Discovery 3)")
    return text


def scopes(text: str) -> str:
    """Read scopes, separated by spaces."""
    if "openid" not in text.split():
        raise ValueError("`openid` is one of them, such as `openid email profile groups`")
    return " ".join(text.split())


def authorization(text: str) -> str:
    """Read the value of an Authorization header, which no error repeats."""
    if not _AUTHORIZATION.fullmatch(text):
        raise ValueError("use the whole value of the header, such as `Basic <base64>`")
    return text


def read_by(read: Callable[[bytes], _Value]) -> Callable[[str], _Value]:
    """Return what reads a value from a setting's own text, or from the file that it names."""
    return lambda text: read(_text_or_file(text))


def policy(text: str) -> Policy:
    """Read a C2SP tlog-policy, or the path of a file of it; its URLs can be called."""
    policy = Policy.parse(_text_or_file(text))
    for witness in policy.witnesses:
        if witness.url is not None:
            operator_url(witness.url)
    return policy


def authorities(text: str) -> str:
    """Read authorities for TLS, PEM or the path of a file of it; return their PEM alone."""
    found = "\n".join(_CERTIFICATES.findall(_text_or_file(text).decode("ascii", "replace")))
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=found)
    except (ssl.SSLError, ValueError):
        raise ValueError("it holds no certificate in PEM that can be read") from None
    return found


def _text_or_file(text: str) -> bytes:
    r"""Return a setting's own text, or the file that it names: bare newlines, UTF-8.

    It is a path unless it has a line break or begins as PEM does. Environment files that allow no
    line break in a value write it as `\n`.
    """
    if not text.startswith("-----BEGIN ") and "\n" not in text:
        return _text_in(text)
    text = text.replace("\r\n", "\n")
    return (text if "\n" in text else text.replace("\\n", "\n")).encode() + b"\n"


def _text_in(path: str) -> bytes:
    """Read a file of text, also where Windows saved it in its own encodings."""
    if not Path(path).is_file():
        raise ValueError(f"no file {path}")
    data = Path(path).read_bytes()
    for mark, encoding in _MARKS.items():
        if data.startswith(mark):
            data = data.decode(encoding).encode()
    if b"\0" in data:
        raise ValueError(f"{path} is UTF-16 without a byte-order mark, or no text: use UTF-8")
    return data.replace(b"\r\n", b"\n")


def networks(text: str) -> tuple[Network, ...]:
    """Read networks, separated by commas."""
    return tuple(ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip())


def nat64_prefixes(text: str) -> tuple[ipaddress.IPv6Network, ...]:
    """Read prefixes of translators (NAT64), separated by commas (RFC 6052, section 2.2)."""
    found = []
    for prefix in networks(text):
        if prefix.version == 4 or prefix.prefixlen not in NAT64_PREFIX_LENGTHS:
            lengths = ", ".join(map(str, NAT64_PREFIX_LENGTHS))
            raise ValueError(f"{prefix} is no IPv6 prefix of one of the lengths {lengths}")
        if prefix.network_address.packed[8]:
            raise ValueError(f"bits 64 to 71 of {prefix} are not zero")
        found.append(prefix)
    return tuple(found)


def proxies(text: str) -> tuple[Network, ...]:
    """Read the networks of proxies; a network of all addresses is refused."""
    found = networks(text)
    if any(network.prefixlen == 0 for network in found):
        raise ValueError("a network of all addresses trusts everyone: name those of your proxies")
    return found


def mail_folder(text: str) -> Path:
    """Read the data folder; return its subfolder for mails, used without a mail server."""
    return Path(text) / "mail"


def schedule(text: str) -> tuple[float, ...]:
    """Read numbers of seconds, separated by commas."""
    seconds = tuple(float(part) for part in text.split(","))
    if not all(0 <= second <= 86400 * 7 for second in seconds) or len(seconds) > 50:
        raise ValueError("use at most 50 numbers of seconds separated by commas, such as 0,5,300")
    return seconds


def positive(text: str) -> float:
    """Read a number above 0."""
    number = float(text)
    if not 0 < number < 1e6:
        raise ValueError("use a number above 0")
    return number


def positive_seconds(text: str) -> timedelta:
    """Read a number of seconds above 0."""
    return timedelta(seconds=positive(text))


def positive_days(text: str) -> timedelta:
    """Read a number of days above 0."""
    return timedelta(days=positive(text))


def seconds(text: str) -> timedelta:
    """Read a number of seconds up to a day."""
    number = float(text)
    if not 0 <= number <= 86400:
        raise ValueError("use a number of seconds from 0 to 86400")
    return timedelta(seconds=number)


def switch(text: str) -> bool:
    """Read whether something is on."""
    if text not in ("0", "1"):
        raise ValueError("use 1 for on, 0 for off")
    return text == "1"


def mailbox(text: str) -> str:
    """Read one mail address."""
    mailboxes.check(text)
    return text


def whole(least: int, most: int, what: str = "number") -> Callable[[str], int]:
    """Return what reads a whole number within bounds; `what` names it in an error."""

    def read(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise ValueError(f"use a whole {what} from {least} to {most}")
        return int(text)

    return read


count = whole(1, 500)
days = whole(1, 3650, "number of days")
many_days = whole(1, 36_500, "number of days")
rate = whole(1, 10**9, "number of bytes a second")


def mebibytes(text: str) -> int:
    """Read a size in MiB; return it in bytes."""
    return whole(1, 65536, "number of MiB")(text) * MIB


def limit(text: str) -> int:
    """Read a limit; 0 means that there is none."""
    if not text.isdecimal() or int(text) > 10**12:
        raise ValueError("use a whole number up to 1000000000000, or 0 for no limit")
    return int(text)


def one_of(*names: str) -> Callable[[str], str]:
    """Return what reads one of these names, in upper or lower case."""

    def read(text: str) -> str:
        for name in names:
            if text.lower() == name.lower():
                return name
        raise ValueError(f"use {', '.join(names[:-1])} or {names[-1]}")

    return read
