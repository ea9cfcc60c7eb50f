"""What a digest lists, to whom, and never twice in 24 hours."""

import pytest
from sqlalchemy import text

from app.core.digests import digest_mail
from app.core.webhooks import webhooks
from tests.jobs.digesting import ADDRESS, Desk, Tenant, killed, listed
from tests.support.servers.mail import Mood


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
    monkeypatch.setattr(digest_mail, "TAKEN_AT_ONCE", 7)
    low = tenant.find(100, severity="low", rule="b")
    high = tenant.find(20, severity="critical", rule="a")
    desk.wait(1)
    (mail,) = desk.send()
    (digest,) = tenant.digests()
    assert digest["findings"] == 120
    assert len(listed(mail)) == digest_mail.MOST_FINDINGS
    assert high < listed(mail)
    assert len(listed(mail) & low) == 30
    text_part = mail.part("plain")
    assert "50 of 120 findings are shown here" in text_part
    assert "LOW  b  (100)" in text_part
    assert "and 70 more" in text_part
    assert mail.parsed["Subject"] == "120 new findings (20 critical)"


def test_findings_dated_later_than_now_are_not_left_behind(desk: Desk, tenant: Tenant) -> None:
    found = tenant.find()
    desk.wait(-24 * 365)
    assert listed(*desk.send()) == found


@pytest.mark.parametrize(
    ("trouble", "zone", "told"),
    [
        ("unsuccessful_deliveries = 10, refused_status = 401", "UTC", "last with HTTP 401"),
        ("consecutive_failures = 5, failing_since = '2026-01-02 03:04+00'", "Asia/Tokyo", "fails"),
    ],
)
def test_a_webhook_in_trouble_is_named_with_the_time_in_utc(
    desk: Desk, tenant: Tenant, trouble: str, zone: str, told: str
) -> None:
    wanted = {"url": "https://hooks.example.com/a-token"}
    with desk.runtime.database.transaction(tenant.id) as session:
        webhooks.create(session, tenant.caller, desk.settings, wanted)
    tenant.find_settled()
    desk.run(f"UPDATE lanes SET unsuccessful_since = '2026-01-02 03:04+00', {trouble}")
    name = desk.settings.database_url.rpartition("/")[2]
    desk.run(f"ALTER DATABASE \"{name}\" SET timezone = '{zone}'")
    desk.runtime.database.engine.dispose()
    (mail,) = desk.send()
    desk.run(f'ALTER DATABASE "{name}" RESET timezone')
    for kind in ("plain", "html"):
        assert "https://hooks.example.com" in mail.part(kind)
        assert told in mail.part(kind)
        assert "since 2 January 2026, 03:04 UTC" in mail.part(kind)
        assert "a-token" not in mail.part(kind)


def test_an_address_changed_between_rcpt_and_data_is_the_one_that_gets_the_mail(
    desk: Desk, tenant: Tenant
) -> None:
    found = tenant.find_settled()
    desk.postbox.at_recipient = lambda: tenant.set_address("new@example.com")
    assert desk.send() == []
    assert tenant.statuses() == ["pending"]
    desk.postbox.at_recipient = lambda: None
    desk.wait(0.1)
    (mail,) = desk.send()
    assert (mail.recipient, listed(mail)) == ("new@example.com", found)


def test_an_address_cleared_between_rcpt_and_data_gets_nothing(desk: Desk, tenant: Tenant) -> None:
    tenant.find_settled()
    desk.postbox.at_recipient = lambda: tenant.set_address(None)
    assert desk.send() == []
    desk.postbox.at_recipient = lambda: None
    desk.wait(0.1)
    assert desk.send() == []
    assert tenant.statuses() == ["cancelled"]


def test_a_refusal_that_comes_after_the_clearing_brings_nothing_back(
    desk: Desk, tenant: Tenant
) -> None:
    tenant.find_settled()
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


@pytest.mark.parametrize("mood", [Mood.NO_RECIPIENT, Mood.NO_DATA, Mood.NO_CONTENT])
@pytest.mark.parametrize("address", ["new@example.com", None])
def test_a_refusal_that_comes_after_the_address_was_changed_is_not_waited_for(
    desk: Desk, tenant: Tenant, mood: Mood, address: str | None
) -> None:
    found = tenant.find_settled()
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
    tenant.find_settled()
    desk.postbox.at_content = lambda: tenant.set_address(None)
    assert len(desk.send()) == 1
    assert tenant.statuses() == ["sent"]


def test_a_clock_that_was_set_back_delays_no_mail_for_more_than_a_day(
    desk: Desk, tenant: Tenant
) -> None:
    tenant.find_settled()
    assert len(desk.send()) == 1
    desk.wait(-24 * 365)
    found = tenant.find_settled()
    assert desk.send() == []
    desk.wait(23)
    assert desk.send() == []
    desk.wait(1.1)
    (mail,) = desk.send()
    assert listed(mail) == found


def test_a_server_that_took_the_mail_long_after_it_was_given_up_begins_the_day(
    desk: Desk, tenant: Tenant
) -> None:
    """RFC 5321 section 4.5.3.2.6 has a server think about a mail for ten minutes."""
    tenant.find_settled()
    desk.postbox.at_content = lambda: desk.wait(10 / 60)
    desk.postbox.taken(Mood.GONE_AFTER_DOT)
    assert len(desk.send()) == 1
    assert tenant.statuses() == ["uncertain"]
    desk.postbox.at_content = lambda: None
    desk.postbox.taken(Mood.TAKE)
    desk.wait(23.99)
    assert desk.send() == []
    desk.wait(0.1)
    assert len(desk.send()) == 1


@pytest.mark.parametrize("dies", [None, "before", "between"])
def test_a_clock_that_was_set_back_keeps_no_open_digest_waiting(
    desk: Desk, tenant: Tenant, dies: str | None
) -> None:
    """One that was refused waits for its next try; a worker that died held its lease."""
    found = tenant.find_settled()
    desk.mortal.dies = dies
    desk.postbox.taken(Mood.TAKE if dies else Mood.NO_RECIPIENT)
    assert killed(desk.send) == (dies is not None)
    desk.postbox.taken(Mood.TAKE)
    desk.wait(-24 * 365)
    desk.tick()
    desk.wait(0.1)
    desk.send()
    desk.wait(25)
    desk.send()
    assert listed(*desk.postbox.mails) == found
