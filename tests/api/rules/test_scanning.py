"""Rules over the past: tried without a trace, and let loose on it once."""

from typing import Any

import pytest
from sqlalchemy import text

from app.core.rules import scanning
from tests.api.rules.conftest import RULE, STEP, Ruled
from tests.support.callers.making import pointers, refused
from tests.support.faults import LONG_ENOUGH

TRIED = {name: RULE[name] for name in ("on", "when", "title")}


def tried(ruled: Ruled, **fields: Any) -> dict[str, Any]:
    answer = ruled.api.post("/v1/rules/test", TRIED | fields)
    assert answer.status_code == 200, answer.json
    return dict(answer.json)


def span(ruled: Ruled, *records: dict[str, Any]) -> dict[str, str]:
    """Return a time from the first of these until now."""
    with ruled.runtime.database.transaction(ruled.tenant.id) as session:
        now = session.scalar(text("SELECT clock_timestamp()"))
    assert now is not None
    return {"since": records[0]["created_at"], "until": now.isoformat()}


def test_a_test_tells_what_would_match_and_stores_nothing(ruled: Ruled) -> None:
    records = [ruled.record({"amount": amount}) for amount in (1, 2000, "many", 3000)]

    result = tried(ruled)

    assert result == {
        "evaluated": 4,
        "matched": 2,
        "errors": 1,
        "matches": [
            {"record_id": records[3]["id"], "session_id": None, "step": None}
            | {"title": "3000 for alice@example.com"},
            {"record_id": records[1]["id"], "session_id": None, "step": None}
            | {"title": "2000 for alice@example.com"},
        ],
        "ms": result["ms"],
        "error": {
            "detail": "No matching overloads found : _>_(string, int64)",
            "record_id": records[2]["id"],
            "session_id": None,
            "step": None,
        },
    }
    assert 0 < result["ms"] < 1000
    assert tried(ruled, record_ids=[records[1]["id"]])["matched"] == 1
    assert tried(ruled, limit=1)["matches"][0]["record_id"] == records[3]["id"]
    assert (
        tried(ruled, since=records[1]["created_at"], until=records[3]["created_at"])["evaluated"]
        == 2
    )
    assert ruled.titles() == []
    assert ruled.api.get("/v1/rules").json["data"] == []


def test_a_test_counts_steps_and_sessions_as_it_looks_at_them(ruled: Ruled) -> None:
    ruled.record(steps=[STEP, STEP | {"status": "error"}])
    ruled.api.post(f"/v1/sessions/{ruled.session['id']}/complete", {"outcome": "failed"})

    steps = tried(ruled, on="step", when="step.status == 'error'", title="t")
    ended = tried(ruled, on="session", when="session.records == 1", title="{{session.outcome}}")

    assert (steps["evaluated"], steps["matched"], steps["matches"][0]["step"]) == (2, 1, 1)
    assert ended["matches"] == [
        {"record_id": None, "session_id": ruled.session["id"], "step": None, "title": "failed"}
    ]


def test_a_test_is_refused_what_it_cannot_look_at(ruled: Ruled) -> None:
    record = ruled.record()
    named = {"record_ids": [record["id"]]}
    post = ruled.api.post

    assert pointers(post("/v1/rules/test", TRIED | named | {"limit": 5})) == ["/record_ids"]
    of_sessions = {"on": "session", "when": "true", "title": "t"}
    assert pointers(post("/v1/rules/test", of_sessions | named)) == ["/record_ids"]
    missing = {"record_ids": ["rec_" + "0" * 32]}
    refused(post("/v1/rules/test", TRIED | missing), 404, "not-found")


def test_a_costly_test_ends(ruled: Ruled, monkeypatch: pytest.MonkeyPatch) -> None:
    # On a slow machine too it is the third evaluation that ends it.
    monkeypatch.setattr(scanning, "_TEST_SECONDS", LONG_ENOUGH)
    for _ in range(5):
        ruled.record({"l": list(range(50_000)), "x": "x" * 200_000})
    when = "content.l.map(a, content.x.replace('x', 'y')).size() == 1"

    result = tried(ruled, when=when, title="t")

    assert result["matched"] == 0
    assert (result["evaluated"], result["errors"]) == (3, 3)
    assert "too much time or memory" in result["error"]["detail"]


def test_a_longer_test_is_a_job_with_progress(
    ruled: Ruled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanning, "_A_STEP", 3)
    for amount in range(998, 1006):
        ruled.record({"amount": amount})

    job = ruled.api.post("/v1/rules/test", TRIED | {"limit": 101})
    assert job.status_code == 202
    done = ruled.work(job.json)

    assert done["status"] == "succeeded"
    told = done["progress"]
    assert (told["evaluated"], told["matched"], told["errors"]) == (8, 5, 0)
    assert [each["title"].split()[0] for each in told["matches"]] == [
        str(amount) for amount in range(1005, 1000, -1)
    ]
    assert ruled.titles() == []


def test_a_backfill_makes_findings_of_the_past_once(
    ruled: Ruled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanning, "_A_STEP", 2)
    records = [ruled.record({"amount": amount}) for amount in range(2000, 2005)]
    rule = ruled.rule(title="{{content.amount}}", max_per_hour=2)
    ruled.record({"amount": 3000})
    ruled.judge()
    path = f"/v1/rules/{rule['id']}/backfill"
    past = span(ruled, *records)

    counted = ruled.work(ruled.api.post(path, past | {"dry_run": True}).json)
    assert (counted["progress"]["matched"], counted["progress"]["findings"]) == (6, 0)
    assert ruled.titles() == ["3000"]
    first = ruled.work(ruled.api.post(path, past).json)
    second = ruled.work(ruled.api.post(path, past).json)

    assert (first["progress"]["matched"], first["progress"]["findings"]) == (6, 5)
    assert (second["progress"]["matched"], second["progress"]["findings"]) == (6, 0)
    assert ruled.titles() == ["3000", *map(str, range(2000, 2005))]
    assert ruled.read(rule)["matches"]["day"] == 6
    ruled.change(rule, title="again {{content.amount}}", enabled=False)
    third = ruled.work(ruled.api.post(path, past).json)
    assert third["progress"]["findings"] == 6
    assert ruled.findings()[-1]["data"]["rule"]["version"] == 2


def test_a_backfill_is_paced_and_stops_when_cancelled(ruled: Ruled) -> None:
    records = [ruled.record({"amount": 2000}) for _ in range(4)]
    rule = ruled.rule(enabled=False)
    path = f"/v1/rules/{rule['id']}/backfill"
    job = ruled.api.post(path, span(ruled, *records) | {"rate": 1}).json

    began = ruled.work(job)
    assert (began["status"], began["progress"]["findings"]) == ("running", 1)
    cancelled = ruled.api.post(f"/v1/jobs/{job['id']}/cancel")
    assert cancelled.status_code == 200

    assert ruled.work(job)["status"] == "cancelled"
    assert len(ruled.findings()) == 1


def test_a_backfill_is_of_the_past(ruled: Ruled) -> None:
    rule = ruled.rule()
    path = f"/v1/rules/{rule['id']}/backfill"
    future = {"since": "2026-01-01T00:00:00Z", "until": "2999-01-01T00:00:00Z"}
    turned = {"since": "2026-01-02T00:00:00Z", "until": "2026-01-01T00:00:00Z"}

    assert pointers(ruled.api.post(path, future)) == ["/until"]
    assert pointers(ruled.api.post(path, turned)) == ["/until"]
    refused(ruled.api.post("/v1/rules/rul_0/backfill", turned), 404, "not-found")


def test_the_library_is_there_to_be_posted(ruled: Ruled) -> None:
    examples = ruled.api.get("/v1/rules/examples").json["data"]

    assert len(examples) == 10
    for example in examples:
        body = {name: value for name, value in example.items() if name not in ("about", "cases")}
        made = ruled.api.post("/v1/rules", body)
        assert made.status_code == 201, made.json
        assert made.json["state"] == "off"
        assert {each["matched"] > 0 for each in example["cases"]} == {True, False}
