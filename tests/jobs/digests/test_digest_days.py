"""Never two mails in 24 hours, whatever the clocks say."""

import pytest

from tests.jobs.digesting import Desk, Tenant, killed, listed
from tests.support.servers.mail import Mood


def test_a_day_goes_by_between_two_mails(desk: Desk, tenant: Tenant) -> None:
    tenant.find_settled()
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
    tenant.find_settled()
    desk.postbox.at_content = lambda: desk.wait(59 / 3600)
    assert len(desk.send()) == 1
    assert tenant.statuses() == ["sent"]
    desk.postbox.at_content = lambda: None
    tenant.find()
    desk.wait(23.99)
    assert desk.send() == []
    desk.wait(0.1)
    assert len(desk.send()) == 1


def test_clearing_and_setting_it_again_does_not_shorten_the_day(desk: Desk, tenant: Tenant) -> None:
    tenant.find_settled()
    assert len(desk.send()) == 1
    tenant.set_address(None)
    tenant.set_address("other@example.com")
    tenant.find()
    desk.wait(20)
    assert desk.send() == []
    desk.wait(5)
    assert [mail.recipient for mail in desk.send()] == ["other@example.com"]


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
