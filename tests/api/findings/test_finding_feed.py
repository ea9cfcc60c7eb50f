"""The feed of findings: its filters and its pages."""

from tests.api.findings.feed import listed
from tests.support.callers.api import ApiOf
from tests.support.callers.making import (
    NOBODY,
    make_finding,
    make_session,
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
