"""What an agent records, as it arrives."""

import asyncio
import contextvars
import os
import threading
from collections.abc import Generator
from typing import Any

import pytest

from tests.client.recorder.conftest import Arrived, MakeRecorder, steps_of


def test_a_record_arrives_with_its_steps_findings_and_approvals(
    recorder: MakeRecorder, arrived: Arrived
) -> None:
    it = recorder()
    with it.session(external_id="chat-42", title="A chat") as session:
        with session.record("refund", "Order 4711", labels={"order": "4711"}) as record:
            with record.step("lookup", kind="execute_tool", inputs={"order": 4711}) as step:
                step.outputs = {"cents": 4990}
                step.attributes["gen_ai.tool.name"] = "lookup"
                step.event("cache.miss", {"age": 3})
            record.approval("erin@example.com", "approved", note="below the limit")
            record.finding("refund.above-limit", severity="critical", title="4990 cents")
            record.content = {"cents": 4990}
            record.outputs = "refunded"
        session.finding("chat.long", severity="info", title="It took long")
    assert it.flush(30)

    found = arrived.one()
    assert (found["kind"], found["title"], found["principal"]) == (
        "refund",
        "Order 4711",
        "dana@example.com",
    )
    assert found["labels"] == {"order": "4711", "trace_id": record.id}
    assert found["content"] == {"cents": 4990}
    steps = steps_of(found)
    root, step_ = steps["Order 4711"], steps["lookup"]
    assert step_["parent_span_id"] == root["span_id"]
    assert "parent_span_id" not in root
    assert root["outputs"] == {"value": "refunded"}
    assert (step_["inputs"], step_["outputs"], step_["status"]) == (
        {"order": 4711},
        {"cents": 4990},
        "ok",
    )
    assert step_["attributes"] == {"gen_ai.tool.name": "lookup"}
    assert [each["name"] for each in step_["events"]] == ["cache.miss"]
    assert [each["decision"] for each in found["approvals"]] == ["approved"]
    (of_record,) = arrived.list("/v1/findings", rule="refund.above-limit")
    assert (of_record["record_id"], of_record["severity"]) == (found["id"], "critical")
    (of_session,) = arrived.list("/v1/findings", rule="chat.long")
    assert (of_session["record_id"], of_session["session_id"]) == (None, found["session_id"])
    (session_,) = arrived.list("/v1/sessions")
    assert (session_["external_id"], session_["status"]) == ("chat-42", "open")
    assert (it.stats()["pending"], it.stats()["dropped"]) == (0, 0)


def test_a_run_is_completed_with_how_it_ended(recorder: MakeRecorder, arrived: Arrived) -> None:
    it = recorder()
    with it.session() as first, first.record("run", "good"):
        pass
    with pytest.raises(ZeroDivisionError), it.session() as second, second.record("run", "bad"):
        raise ZeroDivisionError("card 4111")
    assert it.flush(30)
    outcomes = {row["external_id"]: row["outcome"] for row in arrived.list("/v1/sessions")}
    assert outcomes == {first.external_id: "succeeded", second.external_id: "failed"}
    (bad,) = (each for each in arrived.records() if each["title"] == "bad")
    (event,) = bad["steps"][0]["events"]
    assert event["attributes"]["exception.message"] == "card 4111"
    assert bad["steps"][0]["status"] == "error"


def test_what_follows_the_end_of_a_conversation_opens_the_next(
    recorder: MakeRecorder, arrived: Arrived
) -> None:
    it = recorder()
    for number in range(3):
        with it.session("chat") as session, session.record("turn", str(number)):
            pass
        session.complete("succeeded", "done")
        assert it.flush(30)
    other = recorder(principal="erin@example.com")
    with other.session("chat") as session, session.record("turn", "of another"):
        pass
    assert other.flush(30)
    names = {row["id"]: row["external_id"] for row in arrived.list("/v1/sessions")}
    found = {each["title"]: names[each["session_id"]] for each in arrived.records()}
    assert found == {"0": "chat", "1": "chat#2", "2": "chat#3", "of another": "chat#refund-desk"}


def test_tools_are_steps_under_each_other_in_tasks_and_threads(
    recorder: MakeRecorder, arrived: Arrived
) -> None:
    it = recorder()

    @it.tool
    def inner(number: int, scale: int = 2) -> int:
        """Double."""
        return number * scale

    @it.tool(name="outer")
    async def outer_(number: int) -> int:
        await asyncio.sleep(0)
        return await asyncio.to_thread(inner, number)

    async def run() -> list[int]:
        with it.session("chat") as session, session.record("run", "all"):
            return await asyncio.gather(*(outer_(number) for number in range(5)))

    assert asyncio.run(run()) == [0, 2, 4, 6, 8]
    assert inner.__doc__ == "Double."
    assert it.flush(30)
    found = arrived.one()
    root = next(step for step in found["steps"] if step["name"] == "all")
    outers = {s["span_id"]: s for s in found["steps"] if s["name"] == "outer"}
    assert {step["parent_span_id"] for step in outers.values()} == {root["span_id"]}
    inners = [step for step in found["steps"] if step["name"] == "inner"]
    assert len(inners) == 5
    for step in inners:
        above = outers[step["parent_span_id"]]
        assert above["inputs"] == {"number": step["inputs"]["number"]}
        assert above["outputs"] == step["outputs"]
        assert step["kind"] == "execute_tool"


def test_a_tool_without_a_record_is_one_and_its_errors_pass(
    recorder: MakeRecorder, arrived: Arrived
) -> None:
    it = recorder()

    @it.tool
    def fails(card: str) -> None:
        raise LookupError(card)

    thread_errors: list[Exception] = []

    def in_thread() -> None:
        try:
            fails("4711")
        except LookupError as error:
            thread_errors.append(error)

    with it.session("chat") as session, session.record("run", "other"):
        thread = threading.Thread(target=in_thread)
        thread.start()
        thread.join()
    assert len(thread_errors) == 1
    wrong: Any = fails
    with pytest.raises(TypeError):
        wrong()
    assert it.flush(30)
    titles = sorted(each["title"] for each in arrived.records())
    assert titles == ["fails", "fails", "other"]


def test_nothing_recorded_late_is_lost(recorder: MakeRecorder, arrived: Arrived) -> None:
    it = recorder()
    with it.session("chat") as session:
        with session.record("run", "first") as record:
            slow = record.step("slow", inputs={"a": 1}).start()
        slow.outputs = "late"
        slow.end()
        with record.step("after"):
            pass
        record.finding("late", severity="low", title="late")
    assert it.flush(30)
    first, *later = arrived.records()
    assert steps_of(first)["slow"]["status"] == "unset"
    assert {each["labels"]["supplement_of"] for each in later} == {record.id}
    found: dict[str, Any] = {}
    for each in later:
        found.update(steps_of(each))
    assert found["slow"]["outputs"] == {"value": "late"}
    assert "after" in found
    assert len(arrived.list("/v1/findings", rule="late")) == 1


def test_nothing_raises_into_the_agent_unless_strict(
    recorder: MakeRecorder, arrived: Arrived
) -> None:
    wrong: Any = 7
    lenient = recorder(strict=False)
    with lenient.session(wrong, metadata=wrong) as session:
        record = session.record(wrong, wrong, labels=wrong).start()
        record.step(wrong, attributes=wrong).start().end()
        record.approval(wrong, wrong, at=wrong)
        record.end()
        session.record("never", "begun").end()
    assert lenient.stats()["dropped"] == 2
    with lenient.session("chat") as session, session.record("", "x" * 1000) as record:
        record.finding("r", severity="terrible", title="refused")  # type: ignore[arg-type]
    assert lenient.flush(30)
    assert lenient.stats()["dead"] == 1
    assert [each["title"] for each in arrived.records()] == ["7", "x" * 499 + "…"]
    strict = recorder()
    with strict.session("chat") as session, session.record("run", "strict") as record:
        with pytest.raises(ValueError, match="severity"):
            record.finding("r", severity="terrible", title="t")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="/inputs"):
            record.step("s", inputs={"x": float("nan")}).start()


class _Unsayable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_what_cannot_be_said_as_text_ends_no_record_and_no_agent(
    recorder: MakeRecorder, arrived: Arrived
) -> None:
    it = recorder(strict=False)
    session = it.session("chat-42", title=_Unsayable())  # type: ignore[arg-type]
    with pytest.raises(_Unsayable), session.record("refund", "Order 4711"):
        raise _Unsayable
    assert it.flush(30)
    (event,) = steps_of(arrived.one())["Order 4711"]["events"]
    assert event["attributes"]["exception.message"] == "<unreadable: RuntimeError>"
    assert it.stats()["dropped"] == 0


def test_a_session_and_a_record_may_be_entered_within_themselves(recorder: MakeRecorder) -> None:
    it = recorder(strict=False)
    with it.session("chat-41") as outer, it.session("chat-42") as session:
        with session, session.record("refund", "Order 4711") as record, record:
            assert it.current_step.get() is record.root
        assert it.current_session.get() is session
        # Another thread's entry must not be taken for one of here.
        with session:
            entered = contextvars.copy_context()
            entered.run(session.__enter__)
        entered.run(session.__exit__, None, None, None)
        assert it.current_session.get() is session
    assert (it.current_session.get(), it.current_step.get()) == (None, None)
    assert outer.external_id == "chat-41"


def test_a_generator_that_ends_early_leaves_no_ended_step_current(recorder: MakeRecorder) -> None:
    it = recorder()

    def agent() -> Generator[None]:
        with it.step("agent"):
            yield

    with it.session("chat-42").record("refund", "Order 4711") as record:
        running = agent()
        next(running)
        with it.step("beside") as beside:
            running.close()
            assert it.current_step.get() is beside
        assert it.current_step.get() is record.root
    assert it.current_step.get() is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_that_leaves_its_parent_s_with_ends_no_session(
    recorder: MakeRecorder, arrived: Arrived
) -> None:
    it = recorder()
    with it.session() as session:
        child = os.fork()
        if child == 0:
            # As `sys.exit` within the `with` does.
            session.__exit__(SystemExit, SystemExit(), None)
            os._exit(it.stats()["appended"])
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        with session.record("refund", "Order 4711"):
            pass
    assert it.flush(30)
    (found,) = arrived.list("/v1/sessions")
    assert (found["external_id"], found["outcome"]) == (session.external_id, "succeeded")


def test_a_mask_that_makes_pseudonyms_masks_each_label_once(
    recorder: MakeRecorder, arrived: Arrived
) -> None:
    it = recorder(mask=lambda text: f"<{text}>")
    with it.session("chat-42").record("refund", "Order 4711", labels={"a": "1"}) as record:
        record.label("b", "2")
        late = record.step("late").start()
    late.end()
    with record.supplement():
        pass
    assert it.flush(30)
    masked = {"<a>": "<1>", "<b>": "<2>"}
    for found in arrived.records():
        labels = found["labels"]
        assert {name: labels[name] for name in labels if name[0] == "<"} == masked


def test_a_function_in_c_may_be_a_tool(recorder: MakeRecorder, arrived: Arrived) -> None:
    it = recorder()
    assert it.tool(max)(1, 2) == 2
    assert it.flush(30)
    assert steps_of(arrived.one())["max"]["inputs"] == {"arguments": [1, 2]}
