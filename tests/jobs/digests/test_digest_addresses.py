"""An address that is set, changed or cleared, at any moment."""

import pytest

from tests.jobs.digesting import Desk, Tenant, listed
from tests.support.servers.mail import Mood


def test_an_address_starts_from_the_moment_it_is_set(desk: Desk) -> None:
    tenant = Tenant(desk)
    tenant.find(3)
    tenant.set_address()
    after = tenant.find_settled()
    (mail,) = desk.send()
    assert listed(mail) == after


def test_clearing_the_address_clears_what_was_pending(desk: Desk, tenant: Tenant) -> None:
    tenant.find_settled()
    desk.postbox.taken(Mood.NO_RECIPIENT)
    desk.send()
    tenant.find()
    tenant.set_address(None)
    assert tenant.statuses() == ["cancelled"]
    desk.postbox.taken(Mood.TAKE)
    desk.wait(48)
    assert desk.send() == []
    tenant.set_address()
    after = tenant.find_settled()
    (mail,) = desk.send()
    assert listed(mail) == after


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
