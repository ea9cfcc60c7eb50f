"""Workers that die, freeze, wake up late, or are told to stop."""

import random

import pytest

from app.core.digests import digest_mail
from jobs.durable import run_job
from jobs.durable.run_job import work_on
from tests.jobs.digesting import Desk, Tenant, killed, listed
from tests.support.servers.mail import Mood


@pytest.mark.parametrize(
    ("dies", "becomes"), [("before", "sent"), ("between", "uncertain"), ("after", "uncertain")]
)
def test_a_worker_that_dies_while_it_sends(
    desk: Desk, tenant: Tenant, dies: str, becomes: str
) -> None:
    found = tenant.find_settled()
    desk.mortal.dies = dies
    assert killed(desk.send)
    taken = len(desk.postbox.mails)
    assert taken == (dies == "after")
    assert desk.send() == [], "its lease has not ended"
    desk.wait(0.1)
    again = desk.send()
    assert tenant.statuses() == [becomes]
    if becomes == "uncertain":
        assert again == []
        desk.wait(24.2)
        again = desk.send()
    assert listed(*again) == found


@pytest.mark.parametrize(("at", "becomes"), [("at_recipient", "sent"), ("at_content", "uncertain")])
def test_two_workers_that_both_think_it_theirs_send_one_mail(
    desk: Desk, tenant: Tenant, at: str, becomes: str
) -> None:
    """The first is frozen for longer than its lease; the second takes over."""
    found = tenant.find_settled()
    desk.tick()
    ((_, job_id),) = desk.due_jobs()

    def take_over() -> None:
        setattr(desk.postbox, at, lambda: None)
        desk.wait(0.1)
        work_on(desk.elsewhere, tenant.id, job_id)

    setattr(desk.postbox, at, take_over)
    work_on(desk.runtime, tenant.id, job_id)
    assert len(desk.postbox.mails) == 1
    assert tenant.statuses() == [becomes]
    desk.wait(24.2)
    assert listed(*desk.send()) == (found if becomes == "uncertain" else set())


def test_a_worker_that_wakes_up_late_leaves_the_next_attempt_to_others(
    desk: Desk, tenant: Tenant
) -> None:
    """It was frozen at RCPT; the worker that took over was refused, and waits to try again."""
    tenant.find_settled()
    desk.tick()
    ((_, job_id),) = desk.due_jobs()

    def take_over() -> None:
        desk.postbox.at_recipient = lambda: None
        desk.postbox.taken(Mood.RECIPIENT_LATER)
        desk.wait(0.1)
        work_on(desk.elsewhere, tenant.id, job_id)
        desk.postbox.taken(Mood.TAKE)

    desk.postbox.at_recipient = take_over
    work_on(desk.runtime, tenant.id, job_id)
    assert desk.postbox.mails == []
    (digest,) = tenant.digests()
    assert (digest["status"], digest["refusals"]) == ("pending", 1)
    desk.wait(1.1)
    assert len(desk.send()) == 1


def test_findings_that_are_taken_in_pieces_may_be_taken_by_many(
    desk: Desk, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each piece by a worker that is gone afterwards."""
    monkeypatch.setattr(digest_mail, "TAKEN_AT_ONCE", 3)
    monkeypatch.setattr(run_job, "TURN_SECONDS", -1.0)
    found = tenant.find_settled(10)
    desk.tick()
    pieces = 0
    while tenant.digests()[0]["findings"] is None:
        ((_, job_id),) = desk.due_jobs()
        work_on(random.choice((desk.runtime, desk.elsewhere)), tenant.id, job_id)
        pieces += 1
    assert pieces == 4
    desk.mortal.dies = "before"
    assert killed(desk.work)
    desk.wait(0.1)
    assert listed(*desk.send()) == found


def test_nothing_is_begun_while_the_process_is_to_end(
    desk: Desk, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = tenant.find_settled()
    desk.tick()
    with monkeypatch.context() as ending:
        ending.setattr("jobs.durable.run_job.shutting_down", lambda: True)
        desk.work()
    assert desk.postbox.mails == []
    assert tenant.statuses() == ["pending"]
    desk.wait(0.1)
    assert listed(*desk.send()) == found
