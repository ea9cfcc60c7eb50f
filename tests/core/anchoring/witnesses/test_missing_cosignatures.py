"""A witness or a quorum that does not cosign is reported, with the time since when."""

from app.ledger.policy import Policy
from tests.support.evidence.witnessed import Witnessed
from tests.support.evidence.witnesses import Witness
from tests.support.servers.receivers import http_answer


def test_cosignatures_that_never_make_the_quorum_are_a_trouble(witnessed: Witnessed) -> None:
    place = witnessed.place
    whole = witnessed.name()
    lines = [f"witness {n} {w.vkey} {witnessed.urls[w.name]}" for n, w in witnessed.named()]
    lines += [f"witness three {Witness('witness.test/three').vkey}", "group g all one two three"]
    place.set(witness_policy=Policy.parse("\n".join([*lines, "quorum g", ""]).encode()))
    for _ in range(3):
        place.stamp()
        assert place.troubles() == []
        place.grow()
    place.stamp()
    (trouble,) = place.troubles()
    assert (trouble.part, trouble.alarm) == ("quorum", False)
    assert trouble.since == place.published_at(3)
    place.set(witness_policy=whole)
    place.stamp()
    assert place.troubles() == []


def test_a_quorum_that_fails_since_one_is_away_is_that_one_s_trouble(witnessed: Witnessed) -> None:
    place = witnessed.place
    witnessed.one.faults = [lambda _: http_answer(503)] * 4
    for _ in range(4):
        place.age()
        place.stamp()
        place.grow()
    assert [each.part for each in place.troubles()] == [witnessed.part(witnessed.one)]


def test_one_failed_try_is_no_trouble_yet(witnessed: Witnessed) -> None:
    place = witnessed.place
    witnessed.one.faults = [lambda _: http_answer(503)] * 4
    place.stamp()
    for _ in range(2):
        assert place.troubles() == []
        place.retry()
    assert place.troubles() == []
    place.retry()
    assert [each.part for each in place.troubles()] == [witnessed.part(witnessed.one)]


def test_a_job_that_fails_inside_the_service_is_a_trouble_by_the_next_tick(
    witnessed: Witnessed,
) -> None:
    place = witnessed.place
    place.stamp()
    place.grow()
    place.run("DELETE FROM log_tiles")
    place.stamp()
    assert {each.status for each in place.jobs()} == {"retrying"}
    place.stamp()
    assert place.troubles() == []
    place.age()
    place.stamp()
    both = [witnessed.part(each) for each in (witnessed.one, witnessed.two)]
    assert sorted(each.part for each in place.troubles()) == sorted(both)
    assert "inside the service" in place.troubles()[0].detail
