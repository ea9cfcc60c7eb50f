"""Rules that cost too much are ended, and after three times switched off; others go on."""

import json
import os
import signal
import threading
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from app.core.rules import evaluators as evaluators_module
from app.core.rules import judging, library
from app.core.rules.evaluators import BULK, QUICK, Evaluators, Subject
from app.core.rules.language import RuleText
from tests.api.rules.conftest import STEP, Ruled
from tests.support.faults import until

# Copies of a list, 10,000 long; and memory: a thousand texts of a megabyte.
COPIES = "content.l.map(a, content.x + content.x).size() == 1"
COSTLY = [
    COPIES,
    "content.l.map(a, (content.x + text(a)).replace('1', '2')).size() == 1",
    *(
        pytest.param(each, marks=pytest.mark.toolbox)
        for each in (
            "content.l.exists(a, (" + " + ".join(["content.x"] * 16) + ").size() < 0)",
            "content.l.exists(a, text(content).contains('nothing like this' + text(a)))",
            "content.l.all(a, content.x.matches('(x|x)*y' + text(a)) == false)",
        )
    ),
]
BOUNDED = [
    "content.l.exists(a, content.l.exists(b, a == b + 1000000))",
    "content.x.matches('^(a+)+$')",
    "content.x.matches('(x+x+)+y')",
]


@pytest.fixture
def big() -> dict[str, Any]:
    return {"l": list(range(50_000)), "x": "x" * 1_000_000}


@pytest.mark.parametrize("when", COSTLY)
@pytest.mark.toolbox
def test_a_costly_rule_is_ended_and_switched_off_and_others_are_judged(
    ruled: Ruled, big: dict[str, Any], when: str
) -> None:
    costly = ruled.rule(name="costly", on="record", when=when, title="t")
    ruled.rule(name="good", when="content.x.size() == 1000000", title="good {{record.id}}")
    records = [ruled.record(big)["id"] for _ in range(4)]

    ruled.judge()

    found = ruled.findings()
    assert sorted(each["title"] for each in found if each["rule"] == "good") == sorted(
        f"good {each}" for each in records
    )
    (off,) = (each for each in found if each["rule"] == "costly")
    assert off["title"] == ("The rule costly was switched off: it took too much time or memory")
    assert off["data"] == {
        "rule": {"id": costly["id"], "version": 1},
        "switched_off": "too_costly",
    }
    shown = ruled.read(costly)
    assert (shown["state"], shown["enabled"]) == ("off", False)
    assert shown["last_error"]["count"] == 3
    assert "too much time or memory" in shown["last_error"]["detail"]
    entry = ruled.api.get("/v1/audit?action=rule.disable").json["data"][0]
    assert entry["actor"]["type"] == "system"
    assert entry["details"]["reason"] == "too_costly"


@pytest.mark.parametrize("when", BOUNDED)
def test_what_the_runtime_bounds_ends_nothing(ruled: Ruled, big: dict[str, Any], when: str) -> None:
    rule = ruled.rule(when=when, title="t")
    ruled.record(big)

    ruled.judge()

    error = ruled.read(rule)["last_error"]
    assert error is None or error["detail"] == "Iteration budget exceeded", error


def test_an_evaluator_that_is_killed_is_replaced_and_nobody_is_blamed() -> None:
    evaluators = Evaluators()
    text = RuleText("record", "content == 1", "t", None, None)
    subjects = [Subject({}, b'{"content":1,"steps":[]}', [0])] * 3
    try:
        before = evaluators.judge(BULK, [text], subjects, seconds=5)
        child = evaluators._all[BULK].child
        assert child is not None
        os.kill(child.pid, signal.SIGKILL)
        after = evaluators.judge(BULK, [text], subjects, seconds=5)
    finally:
        evaluators.close()
    assert [each[0].matched for each in (*before.verdicts, *after.verdicts)] == [1] * 6
    assert not after.slow


def test_a_rule_at_which_the_evaluator_was_stopped_is_judged_and_not_blamed(
    big: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluators = Evaluators()
    # Some milliseconds, within its time.
    text = RuleText("record", BOUNDED[0], "t", None, None)
    bundle = json.dumps({"content": big, "steps": []}).encode()
    stopped: list[int] = []
    stopped_one = evaluators._all[BULK]
    monkeypatch.setattr(evaluators_module, "_WAIT_SECONDS", 0.1)
    monkeypatch.setattr(evaluators_module, "_MOST_WAITS", 20)

    def stop_once() -> None:
        until(lambda: stopped_one.child is not None and stopped_one.at == (0, 0), pause=0)
        assert stopped_one.child is not None
        os.kill(stopped_one.child.pid, signal.SIGSTOP)
        stopped.append(stopped_one.child.pid)

    stopping = threading.Thread(target=stop_once)
    stopping.start()
    try:
        judged = evaluators.judge(BULK, [text], [Subject({}, bundle, [0])], seconds=60)
        stopping.join()
        assert stopped_one.child is None or stopped_one.child.pid != stopped[0]
    finally:
        evaluators.close()
    (verdicts,) = judged.verdicts
    assert (verdicts[0].ended, verdicts[0].error) == (False, "Iteration budget exceeded")


def test_a_worker_keeps_the_turn_whose_rules_take_longer_than_its_lease(
    ruled: Ruled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluators_module, "_WAIT_SECONDS", 0.1)
    monkeypatch.setattr(evaluators_module, "_MOST_WAITS", 600)
    monkeypatch.setattr(judging, "LEASE", timedelta(seconds=1))
    ruled.rule()
    ruled.record({"amount": 2000})
    ruled.judge()
    child = ruled.runtime.evaluators._all[QUICK].child
    assert child is not None
    ruled.record({"amount": 3000})

    def ends() -> datetime | None:
        with ruled.runtime.database.transaction(ruled.tenant.id) as session:
            found: datetime | None = session.scalar(text("SELECT locked_until FROM rule_turns"))
            return found

    os.kill(child.pid, signal.SIGSTOP)
    working = threading.Thread(target=ruled.judge)
    working.start()
    try:
        until(lambda: ends() is not None)
        first = ends()
        assert first is not None
        until(lambda: (ends() or first) > first + 2 * judging.LEASE)
        with ruled.runtime.database.transaction(ruled.tenant.id) as session:
            assert judging.claim(session, ruled.tenant.id) is None
    finally:
        os.kill(child.pid, signal.SIGCONT)
        working.join()
    assert len(ruled.titles()) == 2


def test_the_quick_evaluator_leaves_a_slow_rule_to_others() -> None:
    evaluators = Evaluators()
    slow = RuleText("record", COPIES, "t", None, None)
    bundle = b'{"content":{"l":[%s],"x":"%s"},"steps":[]}' % (
        b",".join(b"1" for _ in range(9_000)),
        b"x" * 100_000,
    )
    try:
        judged = evaluators.judge(QUICK, [slow], [Subject({}, bundle, [0])], seconds=5)
    finally:
        evaluators.close()
    assert judged.slow
    assert judged.verdicts == []


def test_each_case_of_the_library_matches_as_often_as_it_says() -> None:
    evaluators = Evaluators()
    try:
        for rule in library.examples():
            texts = {name: rule[name] for name in ("when", "title", "detail", "dedupe")}
            assert evaluators.check(rule["on"], texts) == {}
            for case in rule["cases"]:
                matched, title = _judged(evaluators, RuleText(rule["on"], **texts), case)
                assert matched == case["matched"], (rule["name"], case)
                assert "{{" not in title
    finally:
        evaluators.close()


def _judged(evaluators: Evaluators, text: RuleText, case: dict[str, Any]) -> tuple[int, str]:
    agent = {"id": "agt_1", "external_id": None, "name": "a", "version": None}
    if case["session"] is not None:
        subject = Subject({"agent": agent} | case["session"], None, [0])
    else:
        steps = [STEP | {"events": []} | step for step in case["steps"]]
        bundle = json.dumps({"content": case["content"], "steps": steps}).encode()
        subject = Subject({"agent": agent} | case["record"], bundle, [0])
    verdict = evaluators.judge(BULK, [text], [subject], seconds=5).verdicts[0].get(0)
    if verdict is None:
        return 0, ""
    assert verdict.error is None, (text, verdict)
    return verdict.matched, "".join(each.title for each in verdict.matches)
