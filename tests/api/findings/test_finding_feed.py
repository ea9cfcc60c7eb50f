"""The feed of findings: its filters and its pages."""

import pytest

from tests.api.findings.feed import BATCH, listed
from tests.support.callers.api import ApiOf
from tests.support.callers.making import (
    NOBODY,
    all_pages,
    finding_of,
    make_finding,
    make_session,
    pointers,
    shifted,
)


def test_the_feed_combines_its_filters(api: ApiOf) -> None:
    alice = make_session(api(), principal="alice")
    bob = make_session(api(), alice["agent_id"], principal="bob")
    carol = make_session(api(), principal="carol")
    a = make_finding(api(), alice["id"], severity="low", rule="r1")["id"]
    b = make_finding(api(), bob["id"], severity="high", rule="r1")["id"]
    c = make_finding(api(), carol["id"], severity="high", rule="r2")["id"]
    assert listed(api()) == [c, b, a]
    assert listed(api(), f"agent_id={alice['agent_id']}") == [b, a]
    assert listed(api(), "principal=carol") == [c]
    assert listed(api(), f"session_id={bob['id']}") == [b]
    assert listed(api(), "severity=high") == [c, b]
    assert listed(api(), "rule=r1") == [b, a]
    assert listed(api(), f"severity=high&rule=r1&agent_id={alice['agent_id']}") == [b]
    assert listed(api(), "severity=critical") == []
    assert listed(api(), f"session_id=ses_{NOBODY}") == []


def test_since_includes_its_moment_and_until_does_not(api: ApiOf) -> None:
    session_id = make_session(api())["id"]
    made = [make_finding(api(), session_id) for _ in range(3)]
    old, middle, new = (finding["id"] for finding in made)
    at = made[1]["created_at"]
    assert listed(api(), f"since={shifted(at, 0)}") == [new, middle]
    assert listed(api(), f"until={shifted(at, 0)}") == [old]
    assert listed(api(), f"since={shifted(at, 0)}&until={shifted(at, 1)}") == [middle]


@pytest.mark.parametrize("query", ["severity=HIGH", "rule=", "since=1", "x=q"])
def test_a_wrong_filter_is_refused_by_name(api: ApiOf, query: str) -> None:
    assert pointers(api().get(f"/v1/findings?{query}")) == ["/" + query.partition("=")[0]]


def test_the_pages_of_the_feed_stay_right_while_findings_arrive(api: ApiOf) -> None:
    session_id = make_session(api())["id"]
    body = {"findings": [finding_of(session_id)] * 7}
    made = [finding["id"] for finding in api().post(BATCH, body).json["data"]]
    seen = all_pages(api(), "/v1/findings?limit=3", lambda: make_finding(api(), session_id))
    assert [finding["id"] for finding in seen] == made[::-1]
