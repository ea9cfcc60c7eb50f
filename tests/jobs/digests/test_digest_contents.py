"""What a digest lists: what is new, once, and the rest in the next."""

import pytest
from sqlalchemy import text

from app.core.digests import content, digest_rows
from app.core.webhooks import webhooks
from tests.jobs.digesting import ADDRESS, Desk, Tenant, listed


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


def test_no_mail_is_sent_without_findings_or_without_an_address(desk: Desk, tenant: Tenant) -> None:
    silent = Tenant(desk)
    silent.find()
    desk.wait(50)
    assert desk.send() == []
    assert tenant.digests() == silent.digests() == []


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
    monkeypatch.setattr(digest_rows, "TAKEN_AT_ONCE", 7)
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


def test_findings_dated_later_than_now_are_not_left_behind(desk: Desk, tenant: Tenant) -> None:
    found = tenant.find()
    desk.wait(-24 * 365)
    assert listed(*desk.send()) == found


def test_a_webhook_whose_receiver_refuses_everything_is_named_with_its_answer(
    desk: Desk, tenant: Tenant
) -> None:
    with desk.runtime.database.transaction(tenant.id) as session:
        webhooks.create(session, tenant.caller, desk.settings, {"url": "https://hooks.example.com"})
    desk.run(
        "UPDATE lanes SET unsuccessful_deliveries = 10, refused_status = 401,"
        " unsuccessful_since = '2026-01-02 03:04+00'"
    )
    tenant.find_settled()
    (mail,) = desk.send()
    said = "has refused everything since 2026-01-02 03:04 UTC, last with HTTP 401"
    for kind in ("plain", "html"):
        assert said in mail.part(kind)


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
def test_a_webhook_that_fails_is_named_with_the_time_in_utc(
    desk: Desk, tenant: Tenant, zone: str
) -> None:
    wanted = {"url": "https://hooks.example.com/a-token"}
    with desk.runtime.database.transaction(tenant.id) as session:
        webhooks.create(session, tenant.caller, desk.settings, wanted)
    desk.run("UPDATE lanes SET consecutive_failures = 5, failing_since = '2026-01-02 03:04+00'")
    tenant.find_settled()
    name = desk.settings.database_url.rpartition("/")[2]
    desk.run(f"ALTER DATABASE \"{name}\" SET timezone = '{zone}'")
    desk.runtime.database.engine.dispose()
    (mail,) = desk.send()
    desk.run(f'ALTER DATABASE "{name}" RESET timezone')
    for kind in ("plain", "html"):
        assert "https://hooks.example.com" in mail.part(kind)
        assert "failing since 2026-01-02 03:04 UTC" in mail.part(kind)
        assert "a-token" not in mail.part(kind)
