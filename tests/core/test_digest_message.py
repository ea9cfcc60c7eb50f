"""The mail itself: right numbers, escaped words, headers that no text of others can add to."""

import email
import re
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import default
from html.parser import HTMLParser
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app import ids
from app.core.digests import digest_mail, letters
from app.core.digests.troubles import Kind, Trouble
from app.lib import text_sanitizer
from app.lib.mail import mailbox
from app.lib.mail.mailer import Letter

AT = datetime(2026, 1, 31, 12, tzinfo=UTC)
DIGEST, FINDING, WEBHOOK = (UUID(int=number) for number in (1, 2, 3))
HOSTILE = [
    "x\r\nBcc: victim@example.com\r\n\r\nbody",
    "\n.\nMAIL FROM:<x@example.com>",
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "{{ 7 * 7 }}{% raw %}",
    "\u202egnp.exe \u2066x\u2069",
    "=?utf-8?q?=0ABcc=3A?=",
    "\x00\x0b\x0c\x1b[31m",
    "\u2028Line separators\u2029\x85",
    "title " * 20_000,
    "\U0001f600 ünïcode \ud7ff",
]


def content_of(title: str = "A title", **changes: object) -> dict[str, Any]:
    shown = text_sanitizer.one_line(title, 200)
    line = {"id": FINDING, "title": shown, "principal": shown, "created_at": AT, "again": False}
    trouble = (ids.text("whk", WEBHOOK), AT, "https://hooks.example.com", "fails")
    return {
        "tenant": text_sanitizer.one_line(title, 100),
        "total": 3,
        "again": 0,
        "by_severity": {"critical": 1, "low": 2},
        "groups": [
            {"severity": "critical", "rule": shown, "count": 1, "lines": [line]},
            {"severity": "low", "rule": "rule.b", "count": 2, "lines": []},
        ],
        "groups_left": 0,
        "shown": 1,
        "troubles": [Trouble(Kind.WEBHOOK_FAILING, *trouble)],
        "parts": [{"id": DIGEST, "data_at": None}],
        "brief": False,
    } | changes


def letter_of(
    content: dict[str, Any],
    sender: str = "records@example.com",
    recipient: str = "o'neil+digest@mail.example.co.uk",
) -> Letter:
    return letters.write(
        ids.text("dig", DIGEST),
        "digest",
        content,
        subject=digest_mail.subject(content),
        base_url="https://records.test",
        token="t" * 90,
        sender=sender,
        recipient=recipient,
    )


def mail_of(content: dict[str, Any]) -> EmailMessage:
    return email.message_from_bytes(letter_of(content).content, policy=default)


def part(mail: EmailMessage, kind: str) -> str:
    body = mail.get_body((kind,))
    assert body is not None
    return str(body.get_content()).replace("\r\n", "\n")


def test_the_headers_are_ours() -> None:
    mail = mail_of(content_of())
    assert sorted(mail.keys()) == [
        "Auto-Submitted",
        "Content-Type",
        "Date",
        "From",
        "List-Unsubscribe",
        "List-Unsubscribe-Post",
        "MIME-Version",
        "Message-ID",
        "Subject",
        "To",
    ]
    assert mail["From"] == "record-service <records@example.com>"
    assert mail["To"] == "o'neil+digest@mail.example.co.uk"
    assert mail["Subject"] == "3 new findings (1 critical)"
    assert mail["Message-ID"] == f"<{ids.text('dig', DIGEST)}@example.com>"
    assert mail["List-Unsubscribe"] == f"<https://records.test/unsubscribe/{'t' * 90}>"
    assert mail["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click"
    assert mail["Auto-Submitted"] == "auto-generated"
    assert mail.get_content_type() == "multipart/alternative"


def test_the_bytes_are_fit_for_any_server() -> None:
    letter = letter_of(content_of("ünïcode"))
    lines = letter.content.split(b"\r\n")
    assert all(len(line) <= 998 and b"\n" not in line and b"\r" not in line for line in lines)
    assert letter.content.isascii()
    # A URL that is folded is no URL: mail programs would not find the button.
    (whole,) = (line for line in lines if line.startswith(b"List-Unsubscribe:"))
    assert whole.endswith(b">")


def test_what_cannot_be_seen_is_shown_and_marks_do_not_pile_up() -> None:
    for hidden in "\u00ad\u034f\u115f\u1160\u180e\u2060\u2064\u206a\u206f\u3164\uffa0\ufff9\ufffb":
        assert text_sanitizer.one_line(f"a{hidden}b", 200) == f"a\\u{ord(hidden):04x}b"
    assert text_sanitizer.one_line("e" + "\u0301" * 150 + "f", 200) == "e" + "\u0301" * 4 + "f"
    assert text_sanitizer.one_line("שָּׁ e\u0302\u0301", 200) == "שָּׁ e\u0302\u0301"


def test_of_many_digests_that_may_be_lost_some_are_linked_and_the_rest_are_counted() -> None:
    more = [{"id": UUID(int=n), "data_at": AT} for n in range(100, 112)]
    parts = [{"id": DIGEST, "data_at": None}, *more]
    mail = mail_of(content_of(parts=parts))
    for body in (part(mail, "plain"), part(mail, "html")):
        assert body.count("/console/findings?digest_id=") == 10
        assert "3 more digests may not have reached you" in body
        assert "https://records.test/console/mail" in body
    assert "All findings of the digest of 31 January 2026" in part(mail, "html")


_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,8}[A-Za-z0-9])?"
_ODD = st.text("ab.=?_!#$%&'*+/^`{|}~-Q", min_size=1, max_size=64)
_LIKE_WORDS = st.builds("=?{}?{}?{}?=".format, st.sampled_from(["utf-8", "x"]), st.just("q"), _ODD)
_DOMAINS = st.from_regex(rf"\A({_LABEL}\.){{1,3}}[a-z]{{2,5}}\Z")


@given(local=st.one_of(_ODD, _LIKE_WORDS), domain=_DOMAINS)
@example(local="=?utf-8?q?a?=", domain="example.com")
def test_every_address_that_is_accepted_can_be_written_to(local: str, domain: str) -> None:
    address = f"{local}@{domain}"
    try:
        mailbox.check(address)
    except mailbox.NotAMailbox:
        return
    for sender, recipient in (("r@example.com", address), (address, "r@example.com")):
        letter = letter_of(content_of(), sender, recipient)
        mail = email.message_from_bytes(letter.content, policy=default)
        assert [each.addr_spec for each in mail["To"].addresses] == [recipient]
        assert [each.addr_spec for each in mail["From"].addresses] == [sender]
        assert mail["Message-ID"] == f"<{letter.name}@{sender.rpartition('@')[2]}>"


@given(st.one_of(st.sampled_from(HOSTILE), st.text(st.characters(exclude_categories=["Cs"]))))
@example(HOSTILE[0])
def test_words_of_strangers_stay_words(words: str) -> None:
    plain, hostile = mail_of(content_of()), mail_of(content_of(words))
    assert [hostile.get_all(name) for name in hostile if name not in ("Date", "Content-Type")] == [
        plain.get_all(name) for name in plain if name not in ("Date", "Content-Type")
    ]
    lines = len(part(plain, "plain").splitlines())
    assert len(part(hostile, "plain").splitlines()) == lines
    assert tags(part(hostile, "html")) == tags(part(plain, "html"))
    for kind in ("plain", "html"):
        assert not re.search("[\x00-\x09\x0b-\x1f\u202a-\u202e\u2066-\u2069]", part(hostile, kind))
        assert len(part(hostile, kind)) < 20_000


def test_every_link_is_in_both_parts_and_the_html_loads_nothing() -> None:
    mail = mail_of(content_of())
    for kind in ("plain", "html"):
        for path in (
            f"/console/findings/{ids.text('fnd', FINDING)}",
            f"/console/findings?digest_id={ids.text('dig', DIGEST)}",
            f"/console/webhooks/{ids.text('whk', WEBHOOK)}",
            "/console/settings",
            f"/unsubscribe/{'t' * 90}",
        ):
            assert f"https://records.test{path}" in part(mail, kind), (kind, path)
        assert "fails" in part(mail, kind)
        assert "1 of 3 findings" in part(mail, kind)
    loads = {"script", "img", "link", "iframe", "form", "object", "style"}
    assert not loads & set(tags(part(mail, "html")))


@pytest.mark.parametrize(
    ("total", "again", "subject"),
    [
        (1, 0, "1 new finding (1 critical)"),
        (1200, 0, "1,200 new findings (1 critical)"),
        (3, 2, "1 new finding (1 critical)"),
        (2, 2, "2 findings, listed again (1 critical)"),
    ],
)
def test_the_subject_counts(total: int, again: int, subject: str) -> None:
    assert digest_mail.subject(content_of(total=total, again=again)) == subject


def tags(html: str) -> list[str]:
    found: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            found.append(tag)

    Reader().feed(html)
    return found
