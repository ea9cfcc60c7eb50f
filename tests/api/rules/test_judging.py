"""What rules find: each record once, by the version that was on when it was created."""

import time
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, text

from app.core.delivery import sweeping
from app.core.records.signing import Signer
from app.core.rules import judging
from app.core.rules.judging import NotOurs
from jobs.actors import judge, sweep
from tests.api.rules.conftest import RULE, STEP, Ruled
from tests.support.callers.sending import make_webhook


def test_a_record_that_matches_makes_one_finding_with_its_rule_and_version(ruled: Ruled) -> None:
    make_webhook(ruled.api)
    ruled.record()
    with ruled.runtime.database.transaction(ruled.tenant.id) as session:
        assert ruled.left(session) == 0, "without a rule there is nothing to judge"
    rule = ruled.rule(detail="of {{record.agent.name}}, {{size(steps)}} steps")
    record = ruled.record({"amount": 1200})
    ruled.record({"amount": 12})

    ruled.judge()
    judge.run(ruled.runtime, str(ruled.tenant.id))

    (found,) = ruled.findings()
    assert found == {
        "id": found["id"],
        "created_at": found["created_at"],
        "agent_id": record["agent_id"],
        "principal": record["principal"],
        "session_id": record["session_id"],
        "record_id": record["id"],
        "rule": RULE["name"],
        "severity": "high",
        "source": "rule",
        "title": "1200 for alice@example.com",
        "detail": "of invoice-assistant, 0 steps",
        "data": {
            "rule": {"id": rule["id"], "version": 1},
            "matched": {"kind": "tool.call", "title": "Refunded an order"},
        },
    }
    assert ruled.read(rule)["matches"] == {"hour": 1, "day": 1}
    assert ruled.findings(source="rule") == [found]
    (event,) = ruled.api.get("/v1/events").json["data"]
    assert event["data"]["source"] == "rule"


def test_steps_are_judged_each_and_counted_beyond_twenty(ruled: Ruled) -> None:
    rule = ruled.rule(
        on="step", when="step.status == 'error'", title="{{step.name}} of {{record.title}}"
    )
    steps = [STEP | {"name": f"s{n}", "status": "error" if n % 2 else "ok"} for n in range(50)]
    ruled.record(steps=steps)
    ruled.record(steps=[STEP])

    ruled.judge()

    found = ruled.findings()
    assert [each["title"] for each in found] == [
        *(f"s{n} of Refunded an order" for n in range(1, 40, 2)),
        "large-refund: 5 more steps of this record match",
    ]
    assert [each["data"]["rule"].get("step") for each in found] == [*range(1, 40, 2), None]
    assert found[0]["data"]["matched"] == {"name": "s1", "kind": "execute_tool", "status": "error"}
    assert found[-1]["data"]["more"] == 5
    assert ruled.read(rule)["matches"]["day"] == 25


def test_a_session_is_judged_when_it_completes(ruled: Ruled) -> None:
    ruled.rule(
        on="session",
        when="session.outcome == 'failed' && session.records == 2 && session.duration > 0",
        title="{{session.records}} records for {{session.principal}}",
    )
    ruled.record()
    ruled.record()
    ruled.judge()
    assert ruled.titles() == []
    ruled.api.post(f"/v1/sessions/{ruled.session['id']}/complete", {"outcome": "failed"})

    ruled.judge()

    (found,) = ruled.findings()
    assert (found["session_id"], found["record_id"]) == (ruled.session["id"], None)
    assert found["title"] == "2 records for alice@example.com"


def test_a_record_is_judged_by_the_version_of_its_time_however_late(ruled: Ruled) -> None:
    rule = ruled.rule(title="one")
    ruled.record({"amount": 2000})
    ruled.change(rule, title="two")
    ruled.record({"amount": 2000})
    ruled.change(rule, enabled=False)
    ruled.record({"amount": 2000})
    ruled.change(rule, enabled=True)
    ruled.record({"amount": 2000})
    ruled.change(rule, title="four", enabled=False)
    ruled.change(rule, enabled=True)
    ruled.record({"amount": 2000})
    ruled.api.delete(f"/v1/rules/{rule['id']}")
    ruled.record({"amount": 2000})

    ruled.judge()

    found = ruled.findings()
    assert [each["title"] for each in found] == ["one", "two", "two", "four"]
    assert [each["data"]["rule"]["version"] for each in found] == [1, 2, 2, 3]


def test_a_record_that_commits_late_is_judged(ruled: Ruled, admin_engine: Engine) -> None:
    ruled.rule()
    early = ruled.record({"amount": 2000})
    with admin_engine.begin() as slow:
        # As if its transaction had not committed yet.
        slow.execute(text("CREATE TEMP TABLE kept AS SELECT * FROM rule_work"))
        slow.execute(
            text("DELETE FROM rule_work WHERE tenant_id = :tenant"), {"tenant": ruled.tenant.id}
        )
        slow.execute(text("CREATE TABLE IF NOT EXISTS public.held AS TABLE kept"))
    ruled.record({"amount": 3000})
    ruled.judge()
    assert len(ruled.findings()) == 1
    with admin_engine.begin() as slow:
        slow.execute(text("INSERT INTO rule_work SELECT * FROM public.held"))
        slow.execute(text("DROP TABLE public.held"))

    ruled.judge()

    assert ruled.findings()[-1]["record_id"] == early["id"]


def test_a_rule_judges_each_record_that_comes_after_it(
    ruled: Ruled, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = Signer.note
    late = timedelta(seconds=0.2)

    def note(self: Signer, moment: datetime, key_id: str | None) -> None:
        """Learn the time late, as on a busy machine."""
        noted(self, moment - late, key_id)

    ruled.record()
    # The key that signs is older than what the next record is signed with.
    time.sleep(late.total_seconds())
    monkeypatch.setattr(Signer, "note", note)
    ruled.record({"amount": 2000})
    rule = ruled.rule(title="one")
    record = ruled.record({"amount": 2000})
    ruled.change(rule, title="two")
    ruled.record({"amount": 2000})
    ruled.change(rule, enabled=False)
    ruled.record({"amount": 2000})

    ruled.judge()

    assert ruled.titles() == ["one", "two"]
    assert record["created_at"] > rule["created_at"]


def test_verdicts_are_written_once_and_none_by_rules_that_changed(ruled: Ruled) -> None:
    rule = ruled.rule()
    ruled.record({"amount": 2000})
    database, keys = ruled.runtime.database, ruled.runtime.settings.master_keys
    tenant = ruled.tenant.id

    def begin() -> tuple[Any, Any, Any]:
        with database.transaction(tenant) as session:
            session.execute(text("UPDATE rule_turns SET locked_until = NULL"))
            turn = judging.claim(session, tenant)
            assert turn is not None
            batch = judging.read(session, keys, tenant)
            assert batch is not None
        judged = judging.judge(ruled.runtime.evaluators, turn, batch, lambda: None)
        return turn, batch, judged

    def written(turn: Any, batch: Any, judged: Any) -> bool:
        try:
            with database.transaction(tenant) as session:
                return judging.record(session, turn, batch, judged) == 1
        except NotOurs:
            return False

    first = begin()
    with database.transaction(tenant) as session:
        assert judging.claim(session, tenant) is None
    ruled.change(rule, severity="low")
    assert not written(*first)
    assert ruled.titles() == []

    # One that was taken over, and who took it over.
    second, third = begin(), begin()
    assert written(*second)
    assert not written(*third)
    assert ruled.titles() == ["2000 for alice@example.com"]


def test_an_error_is_shown_with_its_record_and_the_rule_goes_on(ruled: Ruled) -> None:
    rule = ruled.rule()
    bad = ruled.record({"amount": "many"})
    ruled.record({"amount": 2000})
    ruled.record({"other": 1})

    ruled.judge()

    shown = ruled.read(rule)
    assert ruled.titles() == ["2000 for alice@example.com"]
    assert shown["state"] == "failing"
    assert shown["last_error"]["count"] == 2
    assert shown["last_error"]["detail"] == 'Key not found in map : "amount"'
    assert shown["last_error"]["record_id"] != bad["id"]
    assert ruled.change(rule, when="has(content.amount) && content.amount == 1")["state"] == "on"

    # One in a title or `dedupe` costs no finding.
    ruled.change(rule, when="true", title="of {{content.a}}", dedupe="content.b")
    ruled.record({})
    ruled.judge()
    assert ruled.titles()[-1] == "of {{content.a}}"
    assert ruled.read(rule)["last_error"]["detail"].startswith("title: Key not found")


def test_findings_beyond_the_limit_are_told_in_one_when_the_hour_ends(
    ruled: Ruled, admin_engine: Engine
) -> None:
    rule = ruled.rule(max_per_hour=2, title="{{content.amount}}")
    for amount in range(2000, 2005):
        ruled.record({"amount": amount})
    ruled.judge()
    assert ruled.titles() == ["2000", "2001"]
    assert ruled.read(rule)["matches"] == {"hour": 5, "day": 5}

    with admin_engine.begin() as owner:
        owner.execute(
            text("UPDATE rule_hours SET hour = hour - interval '1 hour' WHERE tenant_id = :tenant"),
            {"tenant": ruled.tenant.id},
        )
    with ruled.runtime.database.across_tenants() as session:
        assert (ruled.tenant.id,) in sweeping.due(session, sweep.OTHERS)["judge"]
    judge.run(ruled.runtime, str(ruled.tenant.id))
    judge.run(ruled.runtime, str(ruled.tenant.id))

    last = ruled.findings()[-1]
    assert last["title"].startswith("large-refund: and 3 more in the hour from ")
    assert last["data"]["withheld"] == 3
    assert len(ruled.findings()) == 3
    ruled.record({"amount": 2005})
    ruled.judge()
    assert ruled.titles()[-1] == "2005"


def test_matches_of_one_text_make_one_finding(ruled: Ruled) -> None:
    ruled.rule(dedupe="content.who", title="{{content.who}}")
    for who in ("a", "b", "a", ""):
        ruled.record({"amount": 2000, "who": who})
    ruled.judge()
    for who in ("b", "c", ""):
        ruled.record({"amount": 2000, "who": who})
    ruled.judge()

    assert ruled.titles() == ["a", "b", "(an empty title)", "c"]
