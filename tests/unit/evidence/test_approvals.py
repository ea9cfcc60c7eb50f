"""What people decided, as spans say it: Claude Code's, and those of anybody's."""

from typing import Any

import pytest

from app.evidence.spans import verdicts

ASKED = "claude_code.tool.blocked_on_user"


def step(name: str = "execute_tool refund", **attributes: Any) -> dict[str, Any]:
    """Return a step of a bundle; names of attributes have `_` for a dot."""
    return {
        "name": name,
        "span_id": "b7ad6b7169203331",
        "started_at": "2026-01-31T12:00:00Z",
        "ended_at": "2026-01-31T12:00:02Z",
        "attributes": {each.replace("_", "."): value for each, value in attributes.items()},
        "events": [],
    }


@pytest.mark.parametrize(
    ("source", "is_one"),
    [
        ("user_temporary", True),
        ("user_permanent", True),
        ("user_reject", True),
        ("config", False),
        ("hook", False),
        ("unknown", False),
        ("", False),
    ],
)
def test_of_claude_code_s_decisions_those_of_people_count(source: str, is_one: bool) -> None:
    tool = step("claude_code.tool")
    tool["attributes"] = {"tool_name": "Bash"}
    asked = {**step(ASKED, decision="accept", source=source, user_id="0e1f"), "span_id": "2" * 16}
    found = verdicts.approvals([tool, {**asked, "parent_span_id": tool["span_id"]}], "dana")
    told = {"approved_by": "0e1f", "at": "2026-01-31T12:00:02Z", "decision": "accept"}
    assert found == ([{**told, "note": f"Bash {source}"}] if is_one else [])


def test_a_span_or_an_event_says_who_decided_what_and_when() -> None:
    on_span = step(approval_decision="rejected", approval_note="too much", user_id="dana")
    on_event = step()
    on_event["events"] = [
        {
            "name": "approval",
            "at": "2026-01-31T12:00:01.000000001Z",
            "attributes": {"approval.decision": "approved", "approval.by": "erin"},
        }
    ]
    assert verdicts.approvals([on_span, on_event], "frank") == [
        {
            "approved_by": "dana",
            "at": "2026-01-31T12:00:02Z",
            "decision": "rejected",
            "note": "too much",
        },
        {
            "approved_by": "erin",
            "at": "2026-01-31T12:00:01.000000001Z",
            "decision": "approved",
            "note": "execute_tool refund",
        },
    ]


@pytest.mark.parametrize("odd", [None, "", " ", [], {}, True])
def test_no_decision_is_no_approval(odd: Any) -> None:
    assert verdicts.approvals([step(approval_decision=odd, approval_by="erin")], "dana") == []


def test_odd_decisions_are_cut_to_what_a_bundle_holds() -> None:
    running = step(approval_decision="y\0" * 200, approval_by="e" * 300)
    del running["ended_at"]
    (found, *rest) = verdicts.approvals([running] * 150, "dana")
    assert len(rest) == 99
    assert (len(found["decision"]), len(found["approved_by"])) == (100, 200)
    assert "\0" not in found["decision"]
    assert found["at"] == "2026-01-31T12:00:00Z"
