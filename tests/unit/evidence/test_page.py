"""`record.html`: a page that does nothing, whatever strangers wrote, and is bounded."""

import base64
import html
import re
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from typing import Any

import pytest

from app.evidence import bundle, pack
from app.evidence.page.rendering import MOST_FINDINGS
from tests.unit.verify import packs
from tests.unit.verify.pack.checking import files_of

HOSTILE = (
    "</title></style></pre><script>alert(1)</script><img src=//evil.test/x onerror=alert(2)>"
    "<meta http-equiv=refresh content='0;url=//evil.test'>{{ 7*7 }}{% raw %}\u202e\"'>"
)
TAGS = {
    *("html", "head", "meta", "title", "style", "body", "main", "header", "section", "footer"),
    *("h1", "h2", "h3", "h4", "p", "strong", "span", "bdi", "code", "pre", "time", "br"),
    *("table", "tbody", "tr", "th", "td", "ol", "ul", "li"),
}
ATTRIBUTES = {
    *("lang", "charset", "name", "content", "http-equiv", "class", "id", "aria-labelledby"),
    *("scope", "dir", "datetime"),
}


def page_of(evidence: pack.Evidence) -> str:
    return files_of(b"".join(pack.write(evidence)))["record.html"].decode()


def hostile() -> pack.Evidence:
    """A record, a finding and an agent's name by somebody who wishes the reader ill."""
    step = {
        **packs.STEP,
        "name": HOSTILE,
        "kind": HOSTILE,
        "inputs": {HOSTILE: HOSTILE},
        "attributes": {HOSTILE: HOSTILE},
        "events": [{"name": HOSTILE, "at": "2026-01-31T11:59:58Z", "attributes": {"a": HOSTILE}}],
    }
    names = {"name": HOSTILE, "version": HOSTILE, "external_id": HOSTILE}
    record: Any = packs.record() | {
        "agent": packs.record()["agent"] | names,
        "principal": HOSTILE,
        "kind": HOSTILE,
        "title": HOSTILE,
        "labels": {HOSTILE: HOSTILE},
    }
    approval: Any = {
        **packs.APPROVAL,
        **dict.fromkeys(("approved_by", "decision", "note"), HOSTILE),
    }
    raw = bundle.write(record, HOSTILE, [step], [approval], key_id=packs.KEY.public.id)
    texts = dict.fromkeys(("rule", "title", "detail"), HOSTILE)
    finding = packs.finding(1, record["id"], **texts, data={"rule": {"version": HOSTILE}})
    file = pack.findings_file(record["id"], [finding], 1)
    evidence = packs.evidence(raw)
    return replace(evidence, further={**evidence.further, "findings.json": file})


class Outline(HTMLParser):
    """The tags and attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def attributes(self) -> Iterator[str]:
        return (name for _, each in self.found for name in each)


@pytest.mark.parametrize("evidence", [packs.evidence(), hostile()], ids=["plain", "hostile"])
def test_it_has_no_script_no_link_and_nothing_that_a_stranger_marked_up(
    evidence: pack.Evidence,
) -> None:
    page = page_of(evidence)
    outline = Outline(page)
    assert {tag for tag, _ in outline.found} <= TAGS
    assert set(outline.attributes()) <= ATTRIBUTES
    metas = [each for tag, each in outline.found if tag == "meta"]
    assert [each["http-equiv"] for each in metas if "http-equiv" in each] == [
        "Content-Security-Policy"
    ]
    assert "\u202e" not in page
    assert "49" not in html.unescape(page).partition("7*7")[2][:5]


def test_its_policy_allows_its_own_style_alone() -> None:
    page = page_of(packs.evidence())
    (policy,) = [
        each["content"]
        for tag, each in Outline(page).found
        if tag == "meta" and each.get("http-equiv") == "Content-Security-Policy"
    ]
    style = re.search("<style>(.*)</style>", page, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(sha256(style[1].encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    assert page.index("Content-Security-Policy") < page.index("<style>")
    assert not re.search(r"url\(|@import", style[1])


def test_it_says_what_it_is_who_acted_who_approved_and_what_was_found() -> None:
    page = html.unescape(re.sub("<[^>]*>", "", page_of(packs.evidence(witnesses=[9]))))
    for said in (
        "This page is a rendering; bundle.json is what is signed. All times are in UTC.",
        f"The AI agent {packs.AGENT}",
        "version 2.4.1",
        "elsewhere known as urn:agents:pruefer",
        "ana@example.com: approved.",
        "within the limit",
        "31 January 2026, 11:59:58 UTC",
        "Über dem Limit · high · rule überweisung.limit, version 3",
        "not in the log",
        f"entry 3 of {packs.ORIGIN}, anchored by the service's own log, with one cosignature",
    ):
        assert said in page.replace("\n", " "), said


def test_it_says_that_nobody_approved_and_nothing_was_found() -> None:
    raw = bundle.write(packs.record(), None, [], key_id=packs.KEY.public.id)
    evidence = packs.evidence(raw)
    none = pack.findings_file(packs.record()["id"], [], 0)
    page = page_of(replace(evidence, further={**evidence.further, "findings.json": none}))
    assert "It names nobody who approved it." in page
    assert "The record names nobody who approved or refused what was done." in page
    assert "Nothing was reported of this record when the pack was made." in page


def test_it_is_bounded_whatever_is_in_the_bundle() -> None:
    """Each character here takes five or six bytes once it is escaped."""
    most: Any = {f"{number}": "'\u202e" * 1000 for number in range(3)}
    event = {"name": "\U000e0001" * 500, "at": "2026-01-31T11:59:58Z", "attributes": most}
    step = {**packs.STEP, "attributes": most, "inputs": most, "events": [event] * 20}
    raw = bundle.write(packs.record(), most, [step] * 40, key_id=packs.KEY.public.id)
    assert len(raw) > 7 * 2**20
    evidence = packs.evidence(raw)
    named = packs.record()["id"]
    many = [packs.finding(number, named, detail="'" * 10_000) for number in range(800)]
    file = pack.findings_file(named, many, 900)
    page = page_of(replace(evidence, further={**evidence.further, "findings.json": file}))
    assert len(page.encode()) < 8 * 2**20
    assert page.count("rule <bdi>") == MOST_FINDINGS
    assert "and 850 more" in page
