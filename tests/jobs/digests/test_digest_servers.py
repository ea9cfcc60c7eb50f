"""Mail servers that refuse, hang up, hang, or answer too late."""

import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import text

from app import metrics
from app.core.health import gauges, probes
from app.core.health.readiness import Readiness
from app.lib.mail.mailer import MailServer, Tls
from app.lib.mail.smtp import Smtp
from jobs.durable.run_job import work_on
from jobs.process.runtime import mailer_of
from tests.jobs.digesting import Desk, Tenant, due_tenants, listed
from tests.support.servers.mail import PUT_OFF, SERVICE_REFUSED, Mood


@pytest.mark.parametrize("mood", sorted(PUT_OFF | SERVICE_REFUSED, key=str))
def test_what_is_not_refused_for_good_is_tried_again_as_the_same_digest(
    desk: Desk, tenant: Tenant, mood: Mood
) -> None:
    found = tenant.find_settled()
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


def test_without_a_mail_server_digests_wait_and_readyz_says_so(desk: Desk, tenant: Tenant) -> None:
    settings = replace(desk.settings, smtp_url=None, mail_folder=None)
    readiness = Readiness(desk.runtime.database, settings, clock=lambda: 0.0)

    def mail() -> str:
        readiness.compute()
        return probes.texts(readiness.parts())["mail"]

    found = tenant.find_settled(2)
    assert mail() == "up", "there is nothing to send yet"
    server, desk.mortal.mailer = desk.mortal.mailer, mailer_of(settings)
    assert desk.send() == []
    (digest,) = tenant.digests()
    assert (digest["status"], digest["error"]) == ("pending", "No mail server is set (SMTP_URL).")
    assert mail() == "SMTP_URL is not set: 1 digests wait"
    desk.mortal.mailer = server
    desk.wait(1.1)
    (sent,) = desk.send()
    assert listed(sent) == found
    assert (tenant.statuses(), mail()) == (["sent"], "up")
    readiness.close()


@pytest.mark.parametrize(
    "mood",
    [
        Mood.GONE_BEFORE_DOT,
        Mood.GONE_AFTER_DOT,
        pytest.param(Mood.SLOW, marks=pytest.mark.toolbox),
    ],
)
def test_what_may_have_arrived_is_listed_again_a_day_later_with_a_note(
    desk: Desk, tenant: Tenant, mood: Mood
) -> None:
    lost = tenant.find_settled(2)
    if mood is Mood.SLOW:
        desk.lose_patience()
    desk.postbox.taken(mood)
    desk.send()
    assert tenant.statuses() == ["uncertain"]
    desk.postbox.taken(Mood.TAKE)
    new = tenant.find()
    desk.wait(23.9)
    assert desk.send() == []
    desk.wait(0.3)
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
    lost = tenant.find_settled()
    desk.postbox.taken(Mood.GONE_BEFORE_DOT)
    for _ in range(3):
        desk.send()
        desk.wait(24.2)
    desk.postbox.taken(Mood.TAKE)
    (mail,) = desk.send()
    assert listed(mail) == lost
    assert mail.parsed["Subject"] == "1 finding, listed again (1 high)"
    assert tenant.statuses() == ["uncertain"] * 3 + ["sent"]


def test_what_was_uncertain_is_not_repeated_once_the_address_was_cleared(
    desk: Desk, tenant: Tenant
) -> None:
    tenant.find_settled()
    desk.postbox.taken(Mood.GONE_AFTER_DOT)
    desk.send()
    tenant.set_address(None)
    tenant.set_address()
    desk.postbox.taken(Mood.TAKE)
    desk.wait(48)
    assert desk.send() == []


def test_a_server_that_hangs_holds_one_thread_and_all_others_go_on(desk: Desk) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=100) as silent:
        server = MailServer("127.0.0.1", silent.getsockname()[1], Tls.NEVER)
        here = replace(desk.runtime, mailer=Smtp(server, "records.test", opening_seconds=600.0))
        due_tenants(desk, 8)
        desk.tick()
        due = desk.due_jobs()
        with ThreadPoolExecutor(1) as held, ThreadPoolExecutor(1) as free:
            hangs = held.submit(work_on, here, *due[0])
            connection, _ = silent.accept()
            for job in due[1:]:
                free.submit(work_on, here, *job).result()
            assert not hangs.done()
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


def test_what_came_of_digests_is_counted_and_the_oldest_open_one_is_known(
    desk: Desk, tenant: Tenant
) -> None:
    def counted() -> dict[str, float]:
        outcomes = ("sent", "refused", "uncertain", "cancelled")
        return {each: desk.runtime.tally.value(metrics.DIGESTS, each) for each in outcomes}

    def oldest() -> float:
        with desk.runtime.database.across_tenants() as session:
            return gauges.read_totals(session)["oldest_digest_seconds"]

    tenant.find_settled()
    desk.postbox.taken(Mood.RECIPIENT_LATER)
    desk.send()
    desk.wait(2)
    assert 7200 <= oldest() < 7300
    desk.postbox.taken(Mood.GONE_AFTER_DOT)
    desk.send()
    assert oldest() == 0
    desk.postbox.taken(Mood.TAKE)
    desk.wait(24.2)
    desk.send()
    tenant.find()
    desk.wait(24.2)
    desk.tick()
    tenant.set_address(None)
    desk.work()
    assert counted() == {"sent": 1, "refused": 1, "uncertain": 1, "cancelled": 1}
