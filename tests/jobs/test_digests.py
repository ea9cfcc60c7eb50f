"""Digests, against a real mail server: never two in 24 hours, and no finding in none."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from typing import Any

import pytest
from sqlalchemy import Engine, text

from app import database as database_module
from app import metrics
from app.core import gauges
from app.core.digest import claims, content, taking
from app.lib.smtp import Smtp
from app.lib.smtp_url import MailServer, Tls
from app.settings import Settings
from jobs import send_digests
from jobs.run_job import work_on
from tests.conftest import made_database
from tests.jobs.digesting import ADDRESS, Desk, Killed, Tenant, desk_at, killed, listed
from tests.mail import REFUSED, Mood, Postbox, serving


@pytest.fixture(scope="module")
def own_settings(postgres: object, settings: Settings, admin_engine: Engine) -> Iterator[Settings]:
    with made_database(settings, admin_engine) as own:
        yield replace(own, digest_settle_seconds=900.0)


@pytest.fixture(scope="module")
def server() -> Iterator[Postbox]:
    with serving() as postbox:
        yield postbox


@pytest.fixture
def postbox(server: Postbox) -> Postbox:
    server.taken(Mood.TAKE)
    server.mails.clear()
    server.at_recipient = server.at_content = lambda: None
    return server


@pytest.fixture
def desk(own_settings: Settings, postbox: Postbox) -> Iterator[Desk]:
    with desk_at(own_settings, postbox) as desk:
        yield desk
        # Nothing of one test is due in the next.
        desk.run("UPDATE tenants SET notification_email = NULL")
        desk.run("DELETE FROM digests; DELETE FROM jobs; DELETE FROM findings")


@pytest.fixture
def tenant(desk: Desk) -> Tenant:
    made = Tenant(desk)
    made.set_address()
    return made


def test_what_is_new_is_listed_once_it_has_settled(desk: Desk, tenant: Tenant) -> None:
    first = tenant.find(2)
    assert desk.send() == []
    desk.wait(0.2)
    later = tenant.find()
    assert desk.send() == []
    desk.wait(0.06)
    (mail,) = desk.send()
    assert mail.recipient == ADDRESS
    assert listed(mail) == first | later
    (digest,) = tenant.digests()
    assert (digest["status"], digest["findings"], digest["error"]) == ("sent", 3, None)
    assert digest["claimed_at"] <= digest["data_at"] <= digest["sent_at"]


def test_a_day_goes_by_between_two_mails(desk: Desk, tenant: Tenant) -> None:
    tenant.find()
    desk.wait(1)
    assert len(desk.send()) == 1
    second = tenant.find()
    for _ in range(3):
        desk.wait(7.9)
        assert desk.send() == []
    third = tenant.find()
    desk.wait(0.5)
    (mail,) = desk.send()
    assert listed(mail) == second | third
    desk.wait(30)
    assert desk.send() == []


def test_the_day_begins_when_the_server_has_taken_the_mail(desk: Desk, tenant: Tenant) -> None:
    tenant.find()
    desk.wait(1)
    desk.postbox.at_content = lambda: desk.wait(59 / 3600)
    assert len(desk.send()) == 1
    assert tenant.statuses() == ["sent"]
    desk.postbox.at_content = lambda: None
    tenant.find()
    desk.wait(23.99)
    assert desk.send() == []
    desk.wait(0.1)
    assert len(desk.send()) == 1


def test_nobody_gets_a_mail_about_nothing(desk: Desk, tenant: Tenant) -> None:
    silent = Tenant(desk)
    silent.find()
    desk.wait(50)
    assert desk.send() == []
    assert tenant.digests() == silent.digests() == []


def test_an_address_starts_from_the_moment_it_is_set(desk: Desk) -> None:
    tenant = Tenant(desk)
    tenant.find(3)
    tenant.set_address()
    after = tenant.find()
    desk.wait(1)
    (mail,) = desk.send()
    assert listed(mail) == after


def test_clearing_the_address_clears_what_was_pending(desk: Desk, tenant: Tenant) -> None:
    tenant.find()
    desk.wait(1)
    desk.postbox.taken(Mood.NO_RECIPIENT)
    desk.send()
    tenant.find()
    tenant.set_address(None)
    assert tenant.statuses() == ["cancelled"]
    desk.postbox.taken(Mood.TAKE)
    desk.wait(48)
    assert desk.send() == []
    tenant.set_address()
    after = tenant.find()
    desk.wait(1)
    (mail,) = desk.send()
    assert listed(mail) == after


def test_clearing_and_setting_it_again_does_not_shorten_the_day(desk: Desk, tenant: Tenant) -> None:
    tenant.find()
    desk.wait(1)
    assert len(desk.send()) == 1
    tenant.set_address(None)
    tenant.set_address("other@example.com")
    tenant.find()
    desk.wait(20)
    assert desk.send() == []
    desk.wait(5)
    assert [mail.recipient for mail in desk.send()] == ["other@example.com"]


@pytest.mark.parametrize("mood", sorted(REFUSED, key=str))
def test_what_was_refused_is_tried_again_as_the_same_digest(
    desk: Desk, tenant: Tenant, mood: Mood
) -> None:
    found = tenant.find()
    desk.wait(1)
    desk.postbox.taken(mood)
    for refusals in range(1, 9):
        assert desk.send() == []
        (digest,) = tenant.digests()
        assert (digest["status"], digest["refusals"]) == ("pending", refusals)
        assert digest["error"]
        assert digest["data_at"] is None
        assert desk.due_jobs() == [], "it waits before it tries again"
        desk.wait(1.1)
    desk.postbox.taken(Mood.TAKE)
    (mail,) = desk.send()
    assert listed(mail) == found
    assert tenant.statuses() == ["sent"]


@pytest.mark.parametrize("mood", [Mood.GONE_BEFORE_DOT, Mood.GONE_AFTER_DOT, Mood.SLOW])
def test_what_may_have_arrived_is_listed_again_a_day_later_with_a_note(
    desk: Desk, tenant: Tenant, mood: Mood
) -> None:
    lost = tenant.find(2)
    desk.wait(1)
    desk.postbox.taken(mood)
    desk.send()
    assert tenant.statuses() == ["uncertain"]
    desk.postbox.taken(Mood.TAKE)
    new = tenant.find()
    desk.wait(23.9)
    assert desk.send() == []
    desk.wait(0.2)
    (mail,) = desk.send()
    assert listed(mail) == lost | new
    text_part, html = mail.part("plain"), mail.part("html")
    assert "answer was lost" in text_part
    assert text_part.count("(again)") == 3, "the note, and each of two"
    assert html.count("(listed again)") == 2
    assert mail.parsed["Subject"] == "1 new finding (3 high)"
    assert tenant.statuses() == ["uncertain", "sent"]
    desk.wait(48)
    assert desk.send() == []


def test_a_mail_lost_with_nothing_new_since_is_listed_again_too(desk: Desk, tenant: Tenant) -> None:
    lost = tenant.find()
    desk.wait(1)
    desk.postbox.taken(Mood.GONE_BEFORE_DOT)
    for _ in range(3):
        desk.send()
        desk.wait(24.1)
    desk.postbox.taken(Mood.TAKE)
    (mail,) = desk.send()
    assert listed(mail) == lost
    assert mail.parsed["Subject"] == "1 finding, listed again (1 high)"
    assert tenant.statuses() == ["uncertain"] * 3 + ["sent"]


def test_what_was_uncertain_is_not_repeated_once_the_address_was_cleared(
    desk: Desk, tenant: Tenant
) -> None:
    tenant.find()
    desk.wait(1)
    desk.postbox.taken(Mood.GONE_AFTER_DOT)
    desk.send()
    tenant.set_address(None)
    tenant.set_address()
    desk.postbox.taken(Mood.TAKE)
    desk.wait(48)
    assert desk.send() == []


@pytest.mark.parametrize(
    ("dies", "becomes"), [("before", "sent"), ("between", "uncertain"), ("after", "uncertain")]
)
def test_a_worker_that_dies_while_it_sends(
    desk: Desk, tenant: Tenant, dies: str, becomes: str
) -> None:
    found = tenant.find()
    desk.wait(1)
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
        desk.wait(24)
        again = desk.send()
    assert listed(*again) == found


def test_a_changed_address_gets_what_was_claimed_for_the_one_before(
    desk: Desk, tenant: Tenant
) -> None:
    found = tenant.find()
    desk.wait(1)
    desk.postbox.taken(Mood.NO_RECIPIENT)
    desk.send()
    desk.postbox.taken(Mood.TAKE)
    tenant.set_address("new@example.com")
    desk.work()
    (mail,) = desk.postbox.mails
    assert (mail.recipient, listed(mail)) == ("new@example.com", found)


def test_an_address_changed_between_rcpt_and_data_is_the_one_that_gets_the_mail(
    desk: Desk, tenant: Tenant
) -> None:
    found = tenant.find()
    desk.wait(1)
    desk.postbox.at_recipient = lambda: tenant.set_address("new@example.com")
    assert desk.send() == []
    assert tenant.statuses() == ["pending"]
    desk.postbox.at_recipient = lambda: None
    desk.wait(0.1)
    (mail,) = desk.send()
    assert (mail.recipient, listed(mail)) == ("new@example.com", found)


def test_an_address_cleared_between_rcpt_and_data_gets_nothing(desk: Desk, tenant: Tenant) -> None:
    tenant.find()
    desk.wait(1)
    desk.postbox.at_recipient = lambda: tenant.set_address(None)
    assert desk.send() == []
    desk.postbox.at_recipient = lambda: None
    desk.wait(0.1)
    assert desk.send() == []
    assert tenant.statuses() == ["cancelled"]


def test_a_refusal_that_comes_after_the_clearing_brings_nothing_back(
    desk: Desk, tenant: Tenant
) -> None:
    tenant.find()
    desk.wait(1)
    new: set[str] = set()

    def begin_anew() -> None:
        tenant.set_address(None)
        tenant.set_address()
        new.update(tenant.find())
        desk.run("UPDATE findings SET created_at = created_at - interval '1 hour'")
        desk.tick()

    desk.postbox.at_recipient = begin_anew
    desk.postbox.taken(Mood.NO_RECIPIENT)
    desk.send()
    assert tenant.statuses() == ["cancelled", "pending"]
    desk.postbox.at_recipient = lambda: None
    desk.postbox.taken(Mood.TAKE)
    desk.wait(1)
    assert listed(*desk.send()) == new
    assert tenant.statuses() == ["cancelled", "sent"]


def test_a_digest_kept_back_by_another_mail_does_not_connect_before_its_time(
    desk: Desk, tenant: Tenant
) -> None:
    tenant.find()
    desk.wait(1)
    assert len(desk.send()) == 1
    tenant.find()
    desk.wait(24.1)
    desk.tick()
    # The clock was wrong, or a mail was sent by the release before.
    desk.run("UPDATE digests SET data_at = clock_timestamp() WHERE status = 'sent'")
    called: list[None] = []
    desk.postbox.at_recipient = lambda: called.append(None)
    desk.work()
    desk.wait(23.95)
    desk.work()
    assert (called, desk.due_jobs()) == ([], [])
    desk.wait(0.1)
    desk.work()
    assert len(called) == 1
    assert tenant.statuses() == ["sent", "sent"]


@pytest.mark.parametrize("mood", [Mood.NO_RECIPIENT, Mood.NO_DATA, Mood.NO_CONTENT])
@pytest.mark.parametrize("address", ["new@example.com", None])
def test_a_refusal_that_comes_after_the_address_was_changed_is_not_waited_for(
    desk: Desk, tenant: Tenant, mood: Mood, address: str | None
) -> None:
    found = tenant.find()
    desk.wait(1)
    desk.postbox.taken(mood)
    if mood is Mood.NO_RECIPIENT:
        desk.postbox.at_recipient = lambda: tenant.set_address(address)
    else:
        desk.postbox.at_refusal = lambda: tenant.set_address(address)
    desk.send()
    desk.postbox.taken(Mood.TAKE)
    desk.postbox.at_recipient = desk.postbox.at_refusal = lambda: None
    if address is None:
        assert tenant.statuses() == ["cancelled"]
        return
    desk.wait(10 / 3600)
    desk.work()
    (mail,) = desk.postbox.mails
    assert (mail.recipient, listed(mail)) == (address, found)


def test_an_address_cleared_while_the_mail_is_on_its_way_changes_nothing_about_it(
    desk: Desk, tenant: Tenant
) -> None:
    tenant.find()
    desk.wait(1)
    desk.postbox.at_content = lambda: tenant.set_address(None)
    assert len(desk.send()) == 1
    assert tenant.statuses() == ["sent"]


def test_two_workers_that_both_think_it_theirs_send_one_mail(desk: Desk, tenant: Tenant) -> None:
    """The first is frozen at RCPT for longer than its lease; the second takes over."""
    tenant.find()
    desk.wait(1)
    desk.tick()
    ((_, job_id),) = desk.due_jobs()

    def take_over() -> None:
        desk.postbox.at_recipient = lambda: None
        desk.wait(0.1)
        work_on(desk.elsewhere, tenant.id, job_id)

    desk.postbox.at_recipient = take_over
    work_on(desk.runtime, tenant.id, job_id)
    assert len(desk.postbox.mails) == 1
    assert tenant.statuses() == ["sent"]


def test_a_worker_that_was_given_up_in_the_middle_of_its_mail_sends_no_second(
    desk: Desk, tenant: Tenant
) -> None:
    found = tenant.find()
    desk.wait(1)
    desk.tick()
    ((_, job_id),) = desk.due_jobs()

    def take_over() -> None:
        desk.postbox.at_content = lambda: None
        desk.wait(0.1)
        work_on(desk.elsewhere, tenant.id, job_id)

    desk.postbox.at_content = take_over
    work_on(desk.runtime, tenant.id, job_id)
    assert len(desk.postbox.mails) == 1
    assert tenant.statuses() == ["uncertain"]
    desk.wait(24)
    assert listed(*desk.send()) == found


def test_a_worker_that_wakes_up_late_leaves_the_next_attempt_to_others(
    desk: Desk, tenant: Tenant
) -> None:
    """It was frozen at RCPT; whoever took over was refused, and waits to try again."""
    tenant.find()
    desk.wait(1)
    desk.tick()
    ((_, job_id),) = desk.due_jobs()

    def take_over() -> None:
        desk.postbox.at_recipient = lambda: None
        desk.postbox.taken(Mood.NO_RECIPIENT)
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


def test_an_address_that_was_cleared_behind_our_back_counts_as_cleared(
    desk: Desk, tenant: Tenant
) -> None:
    """A web process of the release before knows of no digests; the database keeps the series."""
    tenant.find()
    desk.wait(1)
    desk.tick()
    change = "UPDATE tenants SET notification_email = :address WHERE id = :id"
    desk.run(change, address=None, id=tenant.id)
    assert desk.send() == []
    assert tenant.statuses() == ["cancelled"]
    desk.run(change, address=ADDRESS, id=tenant.id)
    tenant.find()
    desk.wait(1)

    def clear_and_set() -> None:
        desk.run(change, address=None, id=tenant.id)
        desk.run(change, address=ADDRESS, id=tenant.id)

    desk.postbox.at_recipient = clear_and_set
    assert desk.send() == []
    desk.postbox.at_recipient = lambda: None
    desk.wait(0.1)
    assert desk.send() == []
    assert tenant.statuses() == ["cancelled"] * 2


def test_a_server_that_hangs_holds_one_thread_and_all_others_go_on(desk: Desk) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=100) as silent:
        server = MailServer("127.0.0.1", silent.getsockname()[1], Tls.NEVER)
        here = replace(desk.runtime, mailer=Smtp(server, "records.test", opening_seconds=20.0))
        for _ in range(8):
            tenant = Tenant(desk)
            tenant.set_address()
            tenant.find()
        desk.wait(1)
        desk.tick()
        due = desk.due_jobs()
        with ThreadPoolExecutor(1) as held, ThreadPoolExecutor(1) as free:
            held.submit(work_on, here, *due[0])
            connection, _ = silent.accept()
            for job in due[1:]:
                free.submit(work_on, here, *job).result(timeout=10)
            connection.close()
        silent.settimeout(0)
        with pytest.raises(BlockingIOError):
            silent.accept()
    assert desk.due_jobs() == []
    with desk.owner.connect() as connection_to:
        refusals = "SELECT refusals FROM digests ORDER BY refusals"
        assert list(connection_to.execute(text(refusals)).scalars()) == [0] * 7 + [1]
    desk.wait(0.1)
    desk.work()
    assert len(desk.postbox.mails) == 8


def test_a_digest_is_read_while_its_lease_is_renewed(
    desk: Desk, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant.find()
    desk.wait(1)
    read, during = content.read, list[bool]()

    def slow(*arguments: Any) -> content.Content:
        during.append(any(thread.name == "lease" for thread in threading.enumerate()))
        return read(*arguments)

    monkeypatch.setattr(content, "read", slow)
    assert len(desk.send()) == 1
    assert during == [True]


def test_of_many_that_see_a_tenant_due_one_claims_it(desk: Desk, tenant: Tenant) -> None:
    tenant.find()
    desk.wait(1)
    start = Barrier(6)

    def tick(_: int) -> None:
        start.wait()
        desk.tick()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(tick, range(6)))
    assert tenant.statuses() == ["pending"]
    assert len(desk.due_jobs()) == 1


def test_a_finding_that_is_committed_late_is_in_the_next_digest(desk: Desk, tenant: Tenant) -> None:
    """Its transaction began, and its id was made, before those that the first mail lists."""
    database = desk.runtime.database
    insert = text(
        "INSERT INTO findings (tenant_id, id, session_id, agent_id, principal, rule, severity,"
        " title, digest_id) SELECT tenant_id, '00000000-0000-7000-8000-000000000001', session_id,"
        " agent_id, principal, rule, severity, 'late', :series FROM findings LIMIT 1"
    )
    with database.transaction(tenant.id) as session:
        series = session.scalar(text("SELECT digest_series FROM tenants"))
    first = tenant.find()
    with database.transaction(tenant.id) as late:
        late.execute(insert, {"series": series})
        desk.run(
            "UPDATE findings SET created_at = created_at - interval '1 hour' WHERE id <> :late",
            late="00000000-0000-7000-8000-000000000001",
        )
        (mail,) = desk.send()
        assert listed(mail) == first
    desk.wait(25)
    (mail,) = desk.send()
    assert listed(mail) == {"fnd_00000000000070008000000000000001"}


def test_many_findings_are_taken_in_pieces_and_shown_in_part(
    desk: Desk, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "TAKEN_AT_ONCE", 7)
    low = tenant.find(100, severity="low", rule="b")
    high = tenant.find(20, severity="critical", rule="a")
    desk.wait(1)
    (mail,) = desk.send()
    (digest,) = tenant.digests()
    assert digest["findings"] == 120
    assert len(listed(mail)) == content.MOST_FINDINGS
    assert high < listed(mail)
    assert len(listed(mail) & low) == 30
    text_part = mail.part("plain")
    assert "50 of 120 findings are shown here" in text_part
    assert "LOW  b  (100)" in text_part
    assert "and 70 more" in text_part
    assert mail.parsed["Subject"] == "120 new findings (20 critical)"


def test_a_worker_that_dies_between_two_pieces_loses_none(
    desk: Desk, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "TAKEN_AT_ONCE", 3)
    found = tenant.find(10)
    desk.wait(1)
    desk.mortal.dies = "before"
    assert killed(desk.send)
    desk.wait(0.1)
    assert listed(*desk.send()) == found


def test_a_digest_whose_job_has_died_gets_another(desk: Desk, tenant: Tenant) -> None:
    found = tenant.find()
    desk.wait(1)
    desk.tick()
    desk.run(
        "UPDATE jobs SET status = 'dead', finished_at = clock_timestamp() WHERE tenant_id = :id",
        id=tenant.id,
    )
    assert listed(*desk.send()) == found


def test_a_clock_that_was_set_back_keeps_nobody_waiting_for_more_than_a_day(
    desk: Desk, tenant: Tenant
) -> None:
    tenant.find()
    desk.wait(1)
    assert len(desk.send()) == 1
    desk.wait(-24 * 365)
    found = tenant.find()
    desk.wait(1)
    assert desk.send() == []
    desk.wait(23)
    assert desk.send() == []
    desk.wait(1.1)
    (mail,) = desk.send()
    assert listed(mail) == found


def test_findings_dated_later_than_now_are_not_left_behind(desk: Desk, tenant: Tenant) -> None:
    found = tenant.find()
    desk.wait(-24 * 365)
    assert listed(*desk.send()) == found


def test_nothing_is_begun_while_the_process_is_to_end(
    desk: Desk, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = tenant.find()
    desk.wait(1)
    desk.tick()
    with monkeypatch.context() as ending:
        ending.setattr("jobs.kinds.shutting_down", lambda: True)
        desk.work()
    assert desk.postbox.mails == []
    assert tenant.statuses() == ["pending"]
    desk.wait(0.1)
    assert listed(*desk.send()) == found


def test_a_tick_rings_nobody_twice(desk: Desk, tenant: Tenant) -> None:
    tenant.find()
    desk.wait(1)
    for _ in range(3):
        send_digests.look(desk.runtime)
    assert len(desk.due_jobs()) == 1
    desk.work()
    assert tenant.statuses() == ["sent"]


def test_a_thousand_at_once_and_the_rest_a_minute_later(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "AT_ONCE", 2)
    many = [Tenant(desk) for _ in range(3)]
    for each in many:
        each.set_address()
        each.find()
    desk.wait(1)
    assert len(desk.send()) == 2
    assert len(desk.send()) == 1


def test_a_tenant_that_cannot_be_claimed_keeps_nobody_waiting(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, *others = [Tenant(desk) for _ in range(4)]
    for each in (stuck, *others):
        each.set_address()
        each.find()
    desk.wait(1)
    row = text("SELECT FROM tenants WHERE id = :id FOR NO KEY UPDATE")
    key = text("SELECT pg_advisory_xact_lock(hashtextextended(:key, 0))")
    with desk.owner.begin() as somebody:
        somebody.execute(row, {"id": stuck.id})
        with monkeypatch.context() as patience:
            # Who waited for the lock would wait for ever.
            endless = database_module._PATIENCE.replace("'2s'", "'0'")
            patience.setattr(database_module, "_PATIENCE", endless)
            desk.tick()
    assert [each.statuses() for each in (stuck, *others)] == [[], *[["pending"]] * 3]
    desk.tick()
    (open_one,) = stuck.digests()
    desk.run("DELETE FROM jobs")
    desk.run("DELETE FROM digests WHERE tenant_id <> :id", id=stuck.id)
    with desk.owner.begin() as somebody:
        somebody.execute(key, {"key": f"{stuck.id}:digest:{open_one['id']}"})
        desk.tick()
    assert [each.statuses() for each in others] == [["pending"]] * 3


def test_what_came_of_digests_is_counted_and_the_oldest_open_one_is_known(
    desk: Desk, tenant: Tenant
) -> None:
    def counted() -> dict[str, float]:
        outcomes = ("sent", "refused", "uncertain", "cancelled")
        return {each: desk.runtime.tally.value(metrics.DIGESTS, each) for each in outcomes}

    def oldest() -> float:
        with desk.runtime.database.across_tenants() as session:
            return gauges.read(session).oldest_digest

    tenant.find()
    desk.wait(1)
    desk.postbox.taken(Mood.NO_RECIPIENT)
    desk.send()
    desk.wait(2)
    assert 7200 <= oldest() < 7300
    desk.postbox.taken(Mood.GONE_AFTER_DOT)
    desk.send()
    assert oldest() == 0
    desk.postbox.taken(Mood.TAKE)
    desk.wait(24.1)
    desk.send()
    tenant.find()
    desk.wait(24.1)
    desk.tick()
    tenant.set_address(None)
    desk.work()
    assert counted() == {"sent": 1, "refused": 1, "uncertain": 1, "cancelled": 1}


def test_killed_is_not_an_exception_that_anybody_catches() -> None:
    assert not issubclass(Killed, Exception)
