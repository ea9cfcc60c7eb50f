"""Anchoring that was put off or stands still is told by what there is, not by rows of jobs."""

from collections.abc import Callable

import pytest
import structlog

from dev.tsa import TimestampAuthority
from jobs.actors import ticks
from tests.support.evidence.anchoring import Place

# What somebody with the database can do to every job in one statement.
PUT_OFF = """
UPDATE jobs SET finished_at = NULL, status = 'queued', error = NULL, run_at = '2099-01-01'
"""


def test_heads_whose_job_was_put_off_are_told_by_the_oldest_entry(place: Place) -> None:
    tenant = place.tenant()
    place.anchor()
    place.append(tenant)
    place.run(PUT_OFF)
    place.run("UPDATE audit_entries SET at = at - interval '16 minutes'")
    place.anchor()
    place.stamp()
    assert [each.part for each in place.troubles()] == ["heads"]


def test_an_anchor_that_was_made_up_keeps_no_head_from_being_anchored(place: Place) -> None:
    tenant = place.tenant()
    made_up = "INSERT INTO audit_anchors SELECT id, 99, sha256('x'), now(), sha256('y')"
    place.run(f"{made_up} FROM tenants")
    place.anchor()
    assert place.count("log_leaves") == 1
    place.append(tenant)
    place.run("UPDATE audit_entries SET at = at - interval '16 minutes'")
    a_minute_later(place)
    place.stamp()
    assert [each.part for each in place.troubles()] == ["heads"]


def test_heads_without_an_anchoring_job_are_told_by_the_oldest_entry(place: Place) -> None:
    place.tenant()
    place.run("UPDATE audit_entries SET at = at - interval '16 minutes'")
    ticks.stamp_checkpoint(place.runtime)
    (trouble,) = place.troubles()
    assert "The clock does not ask for it" in trouble.detail
    ticks.anchor_audit(place.runtime)
    a_minute_later(place)
    ticks.stamp_checkpoint(place.runtime)
    (trouble,) = place.troubles()
    assert "No worker runs" in trouble.detail
    place.run("UPDATE jobs SET status = 'succeeded', finished_at = now() WHERE kind LIKE 'anchor%'")
    ticks.stamp_checkpoint(place.runtime)
    (trouble,) = place.troubles()
    assert "audit_chain_not_sealed" in trouble.detail
    place.anchor()
    place.stamp()
    assert place.troubles() == []


@pytest.mark.parametrize("first", [ticks.anchor_audit, ticks.stamp_checkpoint])
def test_heads_that_a_standstill_kept_waiting_are_asked_for_before_they_are_told(
    place: Place, first: Callable[..., None]
) -> None:
    """The clock rings at once what it missed: both ticks come together, in either order."""
    tenant = place.tenant()
    place.anchor()
    place.append(tenant)
    place.run("UPDATE audit_entries SET at = at - interval '8 hours'")
    place.run("UPDATE jobs SET run_at = run_at - interval '8 hours', finished_at = run_at")
    for each in (first, ticks.anchor_audit, ticks.stamp_checkpoint):
        each(place.runtime)
        assert place.troubles() == []
    a_minute_later(place)
    ticks.stamp_checkpoint(place.runtime)
    (trouble,) = place.troubles()
    assert "No worker runs" in trouble.detail
    place.work()
    ticks.stamp_checkpoint(place.runtime)
    assert place.troubles() == []


def test_what_is_not_to_be_anchored_is_no_trouble(place: Place) -> None:
    tenant = place.tenant()
    place.run("UPDATE audit_entries SET at = at - interval '16 minutes'")
    place.run("UPDATE tenants SET anchoring_enabled = false WHERE id = :id", id=tenant)
    place.stamp()
    assert place.troubles() == []


def test_a_stamp_whose_job_was_put_off_is_told_by_the_checkpoints(
    place: Place, authority: TimestampAuthority
) -> None:
    with authority:
        place.stamped_by(authority.url, authority.ca_file)
        place.grow()
        place.stamp()
        place.run(PUT_OFF)
        place.grow()
        for _ in range(3):
            place.age()
        place.stamp()
    assert [each.part for each in place.troubles()] == ["timestamps"]


def test_that_no_stamp_came_is_told_by_the_checkpoints(
    place: Place, authority: TimestampAuthority
) -> None:
    with authority:
        place.stamped_by(authority.url, authority.ca_file)
        place.grow()
        place.age()
        place.age()
        place.age()
        ticks.stamp_checkpoint(place.runtime)
        assert place.troubles() == [], "nobody was asked before"
        ticks.stamp_checkpoint(place.runtime)
        (trouble,) = place.troubles()
        assert (trouble.part, "No worker" in trouble.detail) == ("timestamps", True)
        query = "SELECT min(published_at) FROM checkpoints WHERE size > 0"
        assert trouble.since == place.scalar(query)
        place.work()
    assert place.troubles() == []


def test_a_standstill_is_no_trouble_of_those_who_were_not_asked(
    place: Place, authority: TimestampAuthority
) -> None:
    """Nor is an authority that is named again after a pause, which looks just the same."""
    with authority:
        place.stamped_by(authority.url, authority.ca_file)
        place.grow()
        place.stamp()
        place.grow()
        stand_still(place)
        with structlog.testing.capture_logs() as lines:
            ticks.stamp_checkpoint(place.runtime)
            assert place.troubles() == []
            place.work()
            ticks.stamp_checkpoint(place.runtime)
    assert place.troubles() == []
    assert [each for each in lines if each["event"] == "unanchored"] == []


def test_a_standstill_is_none_of_a_job_that_it_stopped_in_its_tries(
    place: Place, authority: TimestampAuthority
) -> None:
    place.stamped_by("http://127.0.0.1:1/", authority.ca_file)
    place.grow()
    place.stamp()
    assert [each.status for each in place.jobs()] == ["retrying"]
    stand_still(place)
    ticks.stamp_checkpoint(place.runtime)
    assert place.troubles() == []
    ticks.stamp_checkpoint(place.runtime)
    (trouble,) = place.troubles()
    assert "No worker" in trouble.detail, "it was asked for ten minutes ago"


def test_jobs_that_end_and_leave_nothing_are_told_as_such(
    place: Place, authority: TimestampAuthority
) -> None:
    """A worker that was not given TSA_URL has nothing to do."""
    place.stamped_by("http://127.0.0.1:1/", authority.ca_file)
    asks = place.runtime
    place.grow()
    for _ in range(3):
        place.age()
        ticks.stamp_checkpoint(asks)
        place.set(tsa_url=None)
        place.work()
    assert [each.status for each in place.jobs()] == ["succeeded"]
    ticks.stamp_checkpoint(asks)
    (trouble,) = place.troubles()
    assert "nothing that holds is stored" in trouble.detail
    assert "No worker" not in trouble.detail


def a_minute_later(place: Place) -> None:
    """Let the time pass that lies between the two ticks."""
    place.run("UPDATE jobs SET run_at = run_at - interval '1 minute'")


def stand_still(place: Place) -> None:
    """Let eight hours pass in which nothing runs."""
    place.run("UPDATE checkpoints SET published_at = published_at - interval '8 hours'")
    place.run(
        "UPDATE jobs SET run_at = run_at - interval '8 hours',"
        " finished_at = finished_at - interval '8 hours', args = jsonb_set(args::jsonb,"
        " '{asked_at}', to_jsonb((args::jsonb ->> 'asked_at')::timestamptz - interval '8 hours'))"
    )
