"""One mail address, read by a grammar narrower than RFC 5321's.

Quoted local parts, address literals and SMTPUTF8 are refused: each could smuggle in a recipient or
a header. A mailbox is an ASCII Dot-string, `@`, and two or more LDH labels; internationalised
domains are sent in ASCII form (`xn--…`, RFC 5890).
"""

import re

MAX_LENGTH = 254
MAX_LOCAL_PART = 64

_ATEXT = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_LOCAL_PART = re.compile(rf"{_ATEXT}(?:\.{_ATEXT})*", re.ASCII)
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
# The last label has a letter in it, as every top-level domain: four numbers are an address.
_DOMAIN = re.compile(rf"(?:{_LABEL}\.)+(?=[0-9-]*[A-Za-z]){_LABEL}", re.ASCII)


class NotAMailbox(ValueError):
    """The text is no single, plain mail address; the message says what to change."""


def check(text: str) -> None:
    """Raise `NotAMailbox` unless `text` is one plain address such as `security@example.com`."""
    local_part, at, domain = text.rpartition("@")
    if not at:
        raise NotAMailbox("Send one address with an @, such as security@example.com.")
    if len(text) > MAX_LENGTH or len(local_part) > MAX_LOCAL_PART:
        raise NotAMailbox(
            f"At most {MAX_LENGTH} characters, and {MAX_LOCAL_PART} of them before the @."
        )
    if not domain.isascii():
        raise NotAMailbox("Write the domain in its ASCII form, xn--… (RFC 5890).")
    if not _LOCAL_PART.fullmatch(local_part):
        raise NotAMailbox(
            "Send one bare address: before the @ only ASCII letters, digits, single dots and "
            "!#$%&'*+/=?^_`{|}~- can stand, so no display name, spaces, quotes or line breaks."
        )
    if "=?" in local_part:
        # RFC 2047: a reader of the mail's header may take that for an encoded word.
        raise NotAMailbox("Before the @ there can be no =?, which begins an encoded word.")
    if not _DOMAIN.fullmatch(domain):
        raise NotAMailbox(f"Behind the @ put a domain name such as example.com, not {domain!r}.")
