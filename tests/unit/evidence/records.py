"""Records as agents might send them, the strange ones above all, and the bundles they become."""

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, cast

from hypothesis import strategies as st

from app.clock import rfc3339
from app.evidence import bundle
from app.evidence.bundle import Bundle, Record, Step
from app.lib import canonical_json
from app.lib.canonical_json import MAX_INTEGER

BASE_URL = "https://records.example"
SHA256 = "5e" * 32
VERSION = "1.2.3"
AGENT = "Refunds 🤖"

_GOLDEN = Path(__file__).parent / "golden"

characters = st.characters(exclude_categories=["Cs"])
# Names that others have a use for, and names that differ by little.
names = st.sampled_from(
    ["", "draft", "Draft", "draft/2", "draft%2F2", "-", ".", "a.", "-a", "a:b", "_:id1", "%", "é"]
) | st.text(characters, max_size=8)

numbers = st.integers(-MAX_INTEGER, MAX_INTEGER) | st.floats(
    allow_nan=False, allow_infinity=False
).filter(lambda number: not MAX_INTEGER < abs(number) < 1e21)
scalars = st.none() | st.booleans() | numbers | st.text(characters, max_size=12)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=5,
)
attributes = st.dictionaries(
    names | st.sampled_from(["gen_ai.operation.name", "gen_ai.tool.name", "record.step.index"]),
    values,
    max_size=3,
)


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _time_text(microseconds: int) -> str:
    moment = EPOCH + timedelta(microseconds=microseconds)
    if microseconds % 3:
        return rfc3339(moment)
    return moment.astimezone(timezone(timedelta(hours=-3, minutes=-30))).isoformat()


# From 1938 to 2604: OTLP knows neither end.
times = st.integers(-(10**15), 2 * 10**16).map(_time_text)
events = st.fixed_dictionaries({"name": names, "at": times}, optional={"attributes": attributes})
sides = st.lists(names, max_size=3) | st.dictionaries(names, values, max_size=3)
_needed = {
    "name": names,
    "kind": names | st.sampled_from(["tool", "chat", "invoke_agent", "plan"]),
    "started_at": times,
    "status": st.sampled_from(["ok", "error", "unset"]),
}
_besides = {
    "attributes": attributes,
    "events": st.lists(events, max_size=2),
    "inputs": sides,
    "outputs": sides,
}
# Few, so that steps are parents of each other, and of themselves.
spans = st.sampled_from([f"{number:016x}" for number in (1, 2, 2**64 - 1)])
traces = st.sampled_from(["1" * 32, "f" * 32])
links = st.fixed_dictionaries(
    {"trace_id": traces, "span_id": spans}, optional={"attributes": attributes}
)
steps = st.fixed_dictionaries(
    _needed,
    optional={
        **_besides,
        "ended_at": times,
        "span_id": spans,
        "parent_span_id": spans,
        "links": st.lists(links, max_size=2),
    },
)
steps_v1 = st.fixed_dictionaries({**_needed, "ended_at": times}, optional=_besides)
approvals = st.fixed_dictionaries(
    {"approved_by": names, "at": times, "decision": names}, optional={"note": names}
)


def golden(name: str) -> bytes:
    """Return a file of once, whose bytes never change."""
    return (_GOLDEN / name).read_bytes()


def ids(prefix: str) -> st.SearchStrategy[str]:
    return st.integers(0, 2**128 - 1).map(lambda number: f"{prefix}_{number:032x}")


_said = {
    "id": ids("rec"),
    "tenant_id": ids("ten"),
    "principal": names,
    "kind": names,
    "title": names,
    "labels": st.dictionaries(names, st.text(characters, max_size=8), max_size=3),
    "created_at": times,
}
metadata = st.fixed_dictionaries(
    {
        **_said,
        "session": st.fixed_dictionaries({"id": ids("ses")}, optional={"external_id": names}),
        "agent": st.fixed_dictionaries(
            {"id": ids("agt"), "name": names}, optional={"external_id": names, "version": names}
        ),
        "occurred_at": times,
    },
    optional={"trace_id": traces, "models": st.lists(names, max_size=2)},
)
metadata_v1 = st.fixed_dictionaries(
    {
        **_said,
        "session_id": ids("ses"),
        "agent_id": ids("agt"),
        "occurred_at": st.none() | times,
    }
)


def _bundle(record: Any, content: Any, of_steps: list[Any], decided: Any = ()) -> Bundle:
    raw = bundle.write(record, content, of_steps, decided, key_id="0123456789abcdef")
    return bundle.read(raw)


def written_v1(record: Any, content: Any, of_steps: list[Any]) -> bytes:
    """Return a bundle of version 1, as releases before wrote it."""
    complete = [
        {
            "attributes": {},
            **each,
            "events": [{"attributes": {}, **event} for event in each.get("events", [])],
        }
        for each in of_steps
    ]
    return canonical_json.dumps(
        {
            "schema": "records/bundle/v1",
            "record": record,
            "content": content,
            "steps": complete,
            "nonce": "A" * 43,
            "key_id": "0123456789abcdef",
        }
    )


def _read_v1(record: Any, content: Any, of_steps: list[Any]) -> Bundle:
    return bundle.read(written_v1(record, content, of_steps), AGENT)


bundles_v1 = st.builds(_read_v1, metadata_v1, values, st.lists(steps_v1, max_size=3))
bundles = bundles_v1 | st.builds(
    _bundle, metadata, values, st.lists(steps, max_size=3), st.lists(approvals, max_size=2)
)

RECORD: Record = {
    "id": "rec_019412d0a1b27c3d8e4f5a6b7c8d9e0f",
    "tenant_id": "ten_019412d0a1b27c3d8e4f5a6b7c8d9e01",
    "session": {"id": "ses_019412d0a1b27c3d8e4f5a6b7c8d9e02"},
    "agent": {"id": "agt_019412d0a1b27c3d8e4f5a6b7c8d9e03", "name": AGENT},
    "principal": "dana@example.com",
    "kind": "refund",
    "title": "Refund of order NW-86002",
    "labels": {"team": "customer-care"},
    "occurred_at": "2026-01-31T12:00:04.000000Z",
    "created_at": "2026-01-31T12:00:05.123456Z",
}


def step(name: str, **members: Any) -> dict[str, Any]:
    """Return a step of one second that went well, changed as told."""
    return {
        "name": name,
        "kind": "tool",
        "started_at": "2026-01-31T12:00:00.000000Z",
        "ended_at": "2026-01-31T12:00:01.000000Z",
        "status": "ok",
    } | members


def made_of(*of_steps: dict[str, Any], **members: Any) -> Bundle:
    """Return RECORD, changed as told, with these steps and an empty content."""
    decided = members.pop("approvals", ())
    return _bundle(RECORD | members, None, list(of_steps), decided)


def many_steps(number: int) -> Bundle:
    """Return a long record: each step uses what the one before made, and one thing of all."""
    of_steps = (
        step(f"step {index}", inputs=["policy", f"state {index - 1}"], outputs=[f"state {index}"])
        for index in range(number)
    )
    complete = [{"attributes": {}, "events": [], **each} for each in of_steps]
    return {**made_of(), "steps": cast("list[Step]", complete)}
