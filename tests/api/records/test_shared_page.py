"""The page behind a share link: readable without a key or a script, and it gives nothing away."""

import base64
import html
import re
import subprocess
import tracemalloc
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import pytest
from flask import Flask
from sqlalchemy import Engine

from app.api.http.services import EXTENSION
from app.evidence.bundle import Bundle
from app.evidence.page.rendering import CONTENT_CHARACTERS, MOST_STEPS, shown
from app.lib import fair_shares
from app.lib.text_sanitizer import visible
from tests.support.callers.api import Answer, ApiOf, FreshTenant
from tests.support.callers.making import (
    make_finding,
    make_record,
    make_session,
    refused,
    token_to,
)
from tests.support.workers.expiring import expire_link

NEVER = "A" * 43
STEP = {
    "name": "look up the order",
    "kind": "tool",
    "started_at": "2026-01-31T12:00:00Z",
    "ended_at": "2026-01-31T12:00:01.5Z",
    "status": "error",
    "inputs": ["order-4711.json"],
    "outputs": {"total": 12.5},
    "attributes": {"tries": 2},
    "events": [{"name": "asked twice", "at": "2026-01-31T12:00:01Z"}],
}


@pytest.fixture
def show(api: ApiOf) -> Callable[..., Answer]:
    """Return a maker of records that answers each one's page."""

    def shared(accept: str = "text/html", **fields: Any) -> Answer:
        record = make_record(api(), make_session(api())["id"], **fields)
        token, _ = token_to(api(), record)
        return api(None).get(f"/s/{token}", headers={"Accept": accept})

    return shared


def test_the_page_tells_who_did_what_for_whom(show: Callable[..., Answer]) -> None:
    page = show(
        title="Refunded order 4711",
        labels={"env": "production"},
        occurred_at="2026-01-31T12:00:00Z",
        steps=[STEP],
        approvals=[
            {
                "approved_by": "erin@example.com",
                "at": "2026-01-31T12:00:00Z",
                "decision": "approved",
                "note": "a regular customer",
            }
        ],
    )
    assert page.content_type == "text/html; charset=utf-8"
    for told in (
        "Refunded order 4711",
        "alice@example.com",
        "31 January 2026, 12:00:00 UTC",
        "production",
        "49.90 EUR",
        "look up the order",
        "Failed",
        "took 1.5 s",
        "order-4711.json",
        "asked twice",
        "erin@example.com",
        "a regular customer",
    ):
        assert told in html.unescape(page.text), told
    assert '<html lang="en">' in page.text


def test_the_page_says_that_nobody_approved_and_what_was_found(api: ApiOf) -> None:
    record = make_record(api(), make_session(api())["id"])
    token, _ = token_to(api(), record)
    before = api(None).get(f"/s/{token}", headers={"Accept": "text/html"}).text
    assert "It names nobody who approved it." in before
    assert "Nothing was reported of this record so far." in before
    make_finding(
        api(), record["session_id"], record_id=record["id"], rule="late", title="A <b>bold</b> act"
    )
    after = api(None).get(f"/s/{token}", headers={"Accept": "text/html"}).text
    assert "<strong><bdi>A &lt;b&gt;bold&lt;/b&gt; act</bdi></strong>" in after
    assert "rule <bdi>late</bdi>" in after
    assert "are not in the log" in after


def test_its_headers_keep_the_token_on_the_page(show: Callable[..., Answer]) -> None:
    page = show()
    policy = page.headers["Content-Security-Policy"]
    style = re.search("<style>(.*)</style>", page.text, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(sha256(html.unescape(style[1]).encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "script" not in policy
    assert "<script" not in page.text
    assert page.headers["Referrer-Policy"] == "no-referrer"
    assert page.headers["X-Robots-Tag"] == "noindex, nofollow"
    assert page.headers["Cache-Control"] == "private, no-store"


def test_nothing_on_the_page_leads_elsewhere(show: Callable[..., Answer]) -> None:
    page = show(title="https://elsewhere.test/", content="https://elsewhere.test/")
    leads_to = re.findall(r'(?:href|src|action)="([^"]*)"', page.text)
    assert leads_to
    ours = ("https://records.test/v1/records/rec_", "https://records.test/verify.py")
    assert all(each.startswith(ours) for each in leads_to)


def test_what_an_agent_wrote_is_never_markup(show: Callable[..., Answer]) -> None:
    evil = "</pre><script>alert(1)</script><b onclick='x'>"
    step = STEP | {"name": evil, "kind": evil, "inputs": [evil], "attributes": {evil: evil}}
    page = show(title=evil, kind=evil, labels={evil: evil}, content={evil: evil}, steps=[step])
    assert "<script" not in page.text
    assert "<b " not in page.text


def test_what_cannot_be_seen_is_shown_by_its_number(show: Callable[..., Answer]) -> None:
    page = show(title="Paid \u202e00.1 EUR", content="a\u2066b\u200b")
    assert "\u202e" not in page.text
    assert r"Paid \u202e00.1 EUR" in page.text
    assert r"a\u2066b\u200b" in page.text
    family = "\U0001f468\u200d\U0001f469\u200d\U0001f467 zażółć 日本 עברית"
    assert visible(family) == family


def test_a_huge_record_is_cut_with_a_way_to_the_rest(show: Callable[..., Answer]) -> None:
    page = show(content=["x" * 1000] * 3000, steps=[STEP | {"events": []}] * (MOST_STEPS + 5))
    assert len(page.data) < 2_000_000
    assert page.text.count("x" * 1000) <= CONTENT_CHARACTERS / 1000
    assert "It goes on in the <a href=" in page.text
    assert "And 5 more steps" in page.text


def test_what_is_nested_deeply_is_indented_only_as_far_as_it_is_shown() -> None:
    content: Any = [0] * 100_000
    for _ in range(120):
        content = [content]
    tracemalloc.start()
    try:
        cut = shown(
            cast(Bundle, {"record": {"agent": {}}, "content": content, "steps": []})
        ).content
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert cut.more
    assert cut.text.startswith("[\n  [\n    [")
    assert CONTENT_CHARACTERS / 2 < len(cut.text) <= CONTENT_CHARACTERS
    # Indented to its end it is 24 MB, in pieces of 30 MB.
    assert peak < 2_000_000


@pytest.mark.parametrize("content", [None, "", [], {}, 0, False, "words"])
def test_any_content_has_a_page(show: Callable[..., Answer], content: Any) -> None:
    assert show(content=content).status_code == 200


def test_its_own_lines_verify_the_record_with_openssl(
    api: ApiOf, show: Callable[..., Answer], tmp_path: Path
) -> None:
    page = show()
    bundle = re.search(r'href="([^"]*/bundle\?[^"]*)" download="bundle.json"', page.text)
    assert bundle is not None
    (tmp_path / "bundle.json").write_bytes(api(None).get(html.unescape(bundle[1])).data)
    lines = [
        html.unescape(each)
        for each in re.findall(r'<pre class="shell">(.*?)</pre>', page.text, re.DOTALL)
    ]
    done = subprocess.run(
        ["/bin/sh", "-e", "-c", "\n".join(lines)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Signature Verified Successfully" in done.stdout
    digest = re.search("SHA-256 <code>([0-9a-f]{64})</code>", page.text)
    key_id = re.search("Ed25519 key <code>([0-9a-f]{16})</code>", page.text)
    assert digest is not None
    assert key_id is not None
    said = re.findall("^[0-9a-f]{64}", done.stdout, re.MULTILINE)
    assert (said[0], said[1][:16]) == (digest[1], key_id[1])


def test_programs_get_the_metadata_with_links_that_open(api: ApiOf) -> None:
    record = make_record(api(), make_session(api())["id"])
    token, _ = token_to(api(), record)
    answer = api(None).get(f"/s/{token}", headers={"Accept": "application/json"})
    told = dict(answer.json)
    links = told.pop("links")
    assert told == record
    assert links.keys() == {"bundle", "prov", "otlp_logs", "otlp_traces", "evidence"}
    for name, link in links.items():
        # A pack is built by a worker, and none runs here.
        assert api(None).get(link).status_code == (202 if name == "evidence" else 200)


def test_dead_links_are_all_alike(
    api: ApiOf, admin_engine: Engine, other_tenant: FreshTenant
) -> None:
    record = make_record(api(), make_session(api())["id"])
    links = f"/v1/records/{record['id']}/share-links"
    revoked, expired = token_to(api(), record), token_to(api(), record)
    api().delete(f"{links}/{revoked[1]}")
    expire_link(admin_engine, expired[1])
    dead = (NEVER, revoked[0], expired[0], "short", "x" * 2000, "%00", "%F0%9F%A6%8A")
    pages = [api(None).get(f"/s/{token}") for token in dead]
    for page in pages:
        assert page.status_code == 404
        assert page.content_type == "text/html; charset=utf-8"
        assert page.data == pages[0].data
        assert sorted(page.headers.keys()) == sorted(pages[0].headers.keys())
        assert page.headers["Cache-Control"] == "private, no-store"
    as_json = {"Accept": "application/json"}
    problems = [api(None).get(f"/s/{token}", headers=as_json) for token in dead]
    for problem in problems:
        assert refused(problem, 404, "not-found") == refused(problems[0], 404, "not-found")


def test_robots_are_kept_out(api: ApiOf) -> None:
    robots = api(None).get("/robots.txt")
    assert robots.content_type.startswith("text/plain")
    assert "Disallow: /s/\n" in robots.text


def test_a_reader_who_is_refused_has_opened_nothing(
    app: Flask, api: ApiOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fair_shares, "_WAIT_SECONDS", 0.01)
    steps = [{**STEP, "attributes": {"note": "x" * 1000}}] * 100
    record = make_record(api(), make_session(api())["id"], steps=steps)
    token, _ = token_to(api(), record)
    large = app.extensions[EXTENSION].large
    with large.held("another tenant"), large.held("and another"):
        refused(api(None).get(f"/s/{token}", headers={"Accept": "text/html"}), 503, "busy")

    (link,) = api().get(f"/v1/records/{record['id']}/share-links").json["data"]
    assert link["opened"] == 0
    assert api(None).get(f"/s/{token}", headers={"Accept": "text/html"}).status_code == 200
