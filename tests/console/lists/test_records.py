"""Records and findings in the console: found, shown without harm, taken, shared, exported."""

import re
from typing import Any

import pytest
from flask import Flask

from app.console.pages import records
from tests.console.conftest import Open
from tests.support.callers.api import ApiOf, FreshTenant, Mint
from tests.support.callers.console import HERE, Visitor, paths, signed_in
from tests.support.callers.making import (
    make_finding,
    make_record,
    make_session,
    make_share_link,
    pin_of,
)
from tests.support.callers.matrix import World
from tests.support.evidence.exporting import Exporter, exporter
from tests.support.evidence.packing import Packer, packer

__all__ = ["exporter", "packer"]

PAGE, EXPORTS = "/console/records", "/console/exports"
HOSTILE = "<script>alert(1)</script>\u202e"
STEP = {
    "name": HOSTILE,
    "kind": "tool",
    "started_at": "2026-01-31T12:00:00Z",
    "ended_at": "2026-01-31T12:00:02Z",
    "status": "error",
    "inputs": {HOSTILE: HOSTILE},
    "events": [{"name": HOSTILE, "at": "2026-01-31T12:00:01Z"}],
}


@pytest.fixture
def record(api: ApiOf) -> dict[str, Any]:
    """Return a record whose author wishes its readers ill."""
    return make_record(
        api(),
        make_session(api(), principal=HOSTILE)["id"],
        title=HOSTILE,
        kind=HOSTILE,
        content={HOSTILE: HOSTILE},
        labels={"case": HOSTILE},
        steps=[STEP, {**STEP, "ended_at": STEP["started_at"]}],
        approvals=[
            {"approved_by": HOSTILE, "at": "2026-01-31T12:00:02Z", "decision": HOSTILE[:99]}
            | {"note": HOSTILE}
        ],
    )


def test_what_strangers_have_written_does_nothing(
    admin: Visitor, api: ApiOf, record: dict[str, Any]
) -> None:
    found = make_finding(
        api(),
        record["session_id"],
        record_id=record["id"],
        title=HOSTILE,
        rule=HOSTILE,
        detail=HOSTILE,
        data={HOSTILE: [HOSTILE]},
    )
    for path in (
        PAGE,
        f"{PAGE}/{record['id']}",
        "/console/findings",
        f"/console/findings/{found['id']}",
        f"/console/findings?rule={HOSTILE}&record_id={record['id']}",
    ):
        answer = admin.get(path)
        assert answer.status_code == 200
        assert "&lt;script&gt;alert(1)" in answer.text
        assert "<script>alert" not in answer.text
        assert "\u202e" not in re.sub(r'(value|href)="[^"]*"', "", answer.text), path
    page = admin.get(f"{PAGE}/{record['id']}").text
    assert '"took">2.0 s<' in page
    assert "Who approved it" in page


def test_records_and_findings_are_found_by_what_the_url_says(admin: Visitor, api: ApiOf) -> None:
    session = make_session(api())["id"]
    wanted = make_record(api(), session, title="Refunded the zebra", labels={"case": "4711"})
    other = make_record(api(), session, title="Refunded no animal")
    for query in ("q=zebra", "label=case:4711"):
        page = admin.get(f"{PAGE}?{query}").text
        assert wanted["id"] in page
        assert other["id"] not in page
        assert 'class="chips"' in page
    assert "No record fits" in admin.get(f"{PAGE}?kind=nothing").text
    assert "e-label" in admin.get(f"{PAGE}?label=4711").text
    (older,) = re.findall(r'rel="next" href="([^"]+)"', admin.get(f"{PAGE}?limit=1").text)
    assert wanted["id"] in admin.get(older.replace("&amp;", "&")).text
    finding = make_finding(api(), session, severity="low", title="A giraffe was seen")
    assert finding["id"] in admin.get("/console/findings?q=giraffe").text
    assert finding["id"] not in admin.get("/console/findings?q=zebra").text
    assert "e-q" in admin.get("/console/findings?q=--").text
    assert finding["id"] in admin.get("/console/findings?severity=low").text
    assert finding["id"] not in admin.get("/console/findings?severity=high").text
    assert "e-severity" in admin.get("/console/findings?severity=grave").text


def test_a_record_is_taken_as_the_files_that_the_api_answers(
    admin: Visitor, api: ApiOf, record: dict[str, Any]
) -> None:
    for name, path in (("bundle.json", "bundle"), ("prov.json",) * 2, ("otlp-logs.json",) * 2):
        taken = admin.get(f"{PAGE}/{record['id']}/files/{name}")
        assert taken.data == api().get(f"/v1/records/{record['id']}/{path}").data
        assert taken.headers["Content-Disposition"].startswith("attachment")
    assert admin.get(f"{PAGE}/{record['id']}/files/passwd").status_code == 404


def test_a_share_link_is_shown_once_and_revoked(
    admin: Visitor, app: Flask, mint: Mint, record: dict[str, Any]
) -> None:
    page = f"{PAGE}/{record['id']}"
    links = f"{page}/share-links"
    fields = {**admin.form(page, links), "expires_in_seconds": "3600"}
    first, again = (admin.post(links, fields).text for _ in range(2))
    (url,) = re.findall(r'<pre id="link"[^>]*>[^<]*(/s/[^<]+)</pre>', first)
    assert url in again
    assert url not in admin.get(page).text
    assert Visitor(app).get(url).status_code == 200
    (revoke,) = re.findall(rf'action="({links}/[^"]+/revoke)"', admin.get(page).text)
    reader = signed_in(app, mint("read"))
    assert links not in reader.get(page).text
    assert admin.send(page, to=revoke).status_code == 303
    assert Visitor(app).get(url).status_code == 404
    assert "revoked" in admin.get(page).text


def test_no_number_of_ended_links_hides_one_that_opens_the_record(
    admin: Visitor, api: ApiOf, record: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "_MOST_LINKS", 2)
    old, *newer = (make_share_link(api(), record["id"])["id"] for _ in range(4))
    for each in newer:
        assert api().delete(f"/v1/records/{record['id']}/share-links/{each}").status_code == 204
    assert f"share-links/{old}/revoke" in admin.get(f"{PAGE}/{record['id']}").text


def test_a_finding_is_indented_as_far_as_it_is_shown(admin: Visitor, api: ApiOf) -> None:
    data: Any = [0] * 20_000
    for _ in range(100):
        data = [data]
    finding = make_finding(api(), make_session(api())["id"], data={"nested": data})
    page = admin.get(f"/console/findings/{finding['id']}").text
    assert "cut here" in page
    assert len(page) < 100_000


def test_a_pinned_key_finds_only_its_own(app: Flask, mint: Mint, api: ApiOf) -> None:
    own, foreign = (make_session(api()) for _ in range(2))
    records = [make_record(api(), each["id"]) for each in (own, foreign)]
    findings = [make_finding(api(), each["id"]) for each in (own, foreign)]
    pinned = signed_in(app, mint("read", pin=pin_of(own)))
    for page, rows in ((PAGE, records), ("/console/findings", findings)):
        assert rows[0]["id"] in pinned.get(page).text
        assert rows[1]["id"] not in pinned.get(page).text
        assert pinned.get(f"{page}/{rows[1]['id']}").status_code == 404
    assert pinned.get(f"{PAGE}/{records[1]['id']}/files/bundle.json").status_code == 404


def test_any_id_leads_to_its_page_and_words_to_what_has_them(admin: Visitor, api: ApiOf) -> None:
    world = World(api())
    for name, given in world.ids().items():
        led = admin.get(f"/console/search?q={given}")
        assert led.status_code == 303, name
        page = admin.get(led.headers["Location"])
        assert page.status_code == 200, name
        assert name == "share_link_id" or given in led.headers["Location"]
        bare = admin.get(f"/console/search?q={given.partition('_')[2]}")
        assert bare.headers["Location"] == led.headers["Location"]
    session = make_session(api())["id"]
    found = [
        make_record(api(), session, title="An okapi"),
        make_finding(api(), session, title="okapi"),
    ]
    listed = admin.get("/console/search?q=okapi").text
    assert all(each["id"] in listed for each in found)
    assert "Nothing that this key" in admin.get(f"/console/search?q={'0' * 32}").text
    assert "e-q" in admin.get("/console/search?q=--").text
    assert admin.get("/console/search").status_code == 200


def written(api: ApiOf) -> tuple[int, int]:
    """Return how many audit entries and jobs there are."""
    entries = api().get("/v1/audit?limit=1").json["data"]
    return entries[0]["seq"], len(api().get("/v1/jobs?limit=200").json["data"])


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
        {"Sec-Fetch-Site": "same-site"},
        {"Referer": "https://evil.test/console"},
        {},
    ],
)
def test_a_navigation_from_another_site_writes_nothing_in_the_readers_name(
    app: Flask, api: ApiOf, mint: Mint, packer: Packer, headers: dict[str, str]
) -> None:
    ready, new = packer.record(), packer.record()
    packer.built(ready)
    visitor = signed_in(app, mint("admin"))
    files = [f"{PAGE}/{each['id']}/files/evidence.zip" for each in (ready, new)]
    pages = paths(app, World(api()))
    before = written(api)
    # What a page does at all does not hang on which of these headers it came with.
    for path in [*(pages if not headers else []), *files]:
        visitor.get(path, **headers)
    for path in files:
        answer = visitor.get(path, **headers)
        assert answer.status_code == 303, "the record's page has the link"
        assert answer.headers["Location"] == path.partition("/files/")[0]
    assert written(api) == before


@pytest.mark.parametrize(
    "headers", [HERE, {"Sec-Fetch-Site": "none"}, {"Referer": "https://records.test/console/x"}]
)
def test_a_download_from_a_page_of_the_console_is_audited(
    app: Flask, api: ApiOf, mint: Mint, packer: Packer, headers: dict[str, str]
) -> None:
    record = packer.record()
    packer.built(record)
    visitor = signed_in(app, mint("read"))
    before = written(api)[0]
    taken = visitor.get(f"{PAGE}/{record['id']}/files/evidence.zip", **headers)
    assert (taken.status_code, taken.mimetype) == (200, "application/zip")
    assert written(api)[0] == before + 1


def test_a_period_is_ordered_followed_downloaded_and_deleted(
    app: Flask, tenant: FreshTenant, exporter: Exporter
) -> None:
    made = exporter.records(3)
    visitor = signed_in(app, tenant.root_key)
    period = {"since": "2026-01-01T00:00", "until": exporter.now().strftime("%Y-%m-%dT%H:%M:%S.%f")}

    ordered = visitor.send(EXPORTS, {**period, "agent_id": ""})
    page = ordered.headers["Location"]
    making = visitor.get(page).text
    export = exporter.work({"id": page.rpartition("/")[2]})
    ready = visitor.get(page).text
    file = visitor.get(f"{page}/files/export.ndjson", **HERE)

    assert ordered.status_code == 303
    assert 'data-live="watch"' in making
    assert "3 records" in ready
    assert export["sha256"] in ready
    assert all(each["id"].encode() in file.data for each in made)
    assert visitor.get(f"{page}/files/export.ndjson").headers["Location"] == page
    assert "3" in visitor.get(EXPORTS).text
    visitor.send(page, to=f"{page}/delete")
    assert "The file is gone" in visitor.get(page).text


COUNT = 20_000


def steps(count: int) -> list[dict[str, Any]]:
    """Return a root and its children, of which number 450 failed."""
    at = "2026-01-31T12:00:00Z"
    step = {"kind": "tool", "started_at": at, "ended_at": at, "status": "ok", "attributes": {}}
    root = {**step, "name": "root", "span_id": "0" * 15 + "1"}
    children = [
        {**step, "name": f"step {n}", "parent_span_id": root["span_id"]}
        for n in range(2, count + 1)
    ]
    children[448]["status"] = "error"
    return [root, *children]


@pytest.fixture
def large(api: ApiOf) -> dict[str, Any]:
    session = make_session(api())
    made = make_record(api(), session["id"], steps=steps(COUNT), content={"text": "word " * 1000})
    make_finding(api(), session["id"], record_id=made["id"], title="medlar finding")
    return made


def test_twenty_thousand_steps_come_page_by_page_and_what_failed_is_one_link_away(
    admin: Visitor, large: dict[str, Any]
) -> None:
    path = f"/console/records/{large['id']}"
    page = admin.get(path).text
    assert len(page) < 500_000
    assert "1 to 200 of 20,000" in page
    for anchor in ("content", "approvals", "steps", "findings", "record", "proof", "share-links"):
        assert f'href="#{anchor}"' in page
        assert f'id="{anchor}"' in page
    assert "medlar finding" in page
    (failed,) = re.findall(r'Failed:\s*<a href="([^"]+)">step 450</a>', page)
    assert failed == f"{path}?steps=400#step-450"
    there = admin.get(f"{path}?steps=400").text
    assert 'id="step-450"' in there
    names = re.findall(r'class="step-name"[^>]*>(.*?)</span>', there)
    assert (names[0], names[-1], len(names)) == ("step 401", "step 600", 200)
    (last,) = set(re.findall(r'href="([^"]+)#steps">Last<', there))
    names = re.findall(r'class="step-name"[^>]*>(.*?)</span>', admin.get(last).text)
    assert names[-1] == "step 20000"
    assert "from 0 to" in admin.get(f"{path}?steps=x").text
    assert "20,001 to 20,000" not in admin.get(f"{path}?steps=20000").text
    # Long content is folded.
    assert re.search(r"<details><summary>[\d,]+ characters</summary>", page)


@pytest.mark.browser
def test_ids_payloads_and_commands_can_be_copied_with_a_script_alone(
    open_browser: Open, tenant: FreshTenant, large: dict[str, Any]
) -> None:
    path = f"/console/records/{large['id']}"
    plain = open_browser(tenant.root_key, java_script_enabled=False)
    plain.goto(path)
    assert plain.get_by_role("button", name="Copy").count() == 0
    page = open_browser(tenant.root_key, permissions=["clipboard-read", "clipboard-write"])
    page.goto(path)
    page.get_by_role("button", name=f"Copy {large['id']}").click()
    page.get_by_text("Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == record["id"]
    assert page.locator("footer button.copy").count() == 2
