"""Refusals for good: of a mail's words, of its recipient, and of the service itself."""

from dataclasses import replace
from typing import Any

import pytest

from app.core.digests import schedule, sending
from app.core.health import probes
from app.core.health.readiness import Readiness
from app.lib.mail.mailer import MailServer, Tls
from app.models import Digest
from tests.jobs.digesting import Desk, Tenant, listed
from tests.support.servers.mail import Mail, Mood

POISON = "cheap-pills.example"
ENCODED = POISON.encode()


def shown(desk: Desk, tenant: Tenant) -> list[dict[str, Any]]:
    """Return what the tenant is shown of its digests, oldest first."""
    with desk.runtime.database.transaction(tenant.id) as session:
        rows = sending.rows(session, Digest, tenant.id, None, 50)
        return [schedule.represent(row) for row in reversed(rows)]


def mail_state(desk: Desk) -> str:
    """Return what `/readyz` says of mail."""
    server = MailServer("127.0.0.1", desk.postbox.port, Tls.NEVER)
    readiness = Readiness(desk.runtime.database, replace(desk.settings, smtp_url=server))
    try:
        readiness.compute()
        return probes.texts(readiness.parts())["mail"]
    finally:
        readiness.close()


def standing(desk: Desk) -> dict[str, int]:
    """Return how many digests stand refused, by what is refused."""
    with desk.runtime.database.across_tenants() as session:
        return schedule.counted(schedule.standing(session))


def find_poison(desk: Desk, tenant: Tenant) -> set[str]:
    """Add findings, one of whose titles the server does not take."""
    desk.postbox.objects_to = lambda content: ENCODED in content
    found = tenant.find(2) | tenant.find(title=f"See {POISON}", rule="spam", severity="low")
    desk.wait(1)
    return found


def send_again(desk: Desk) -> list[Mail]:
    """Send what is due, and what is due half a minute later."""
    mails = desk.send()
    desk.wait(0.01)
    return mails + desk.send()


def test_words_that_are_refused_are_left_out_and_the_mail_goes(desk: Desk, tenant: Tenant) -> None:
    found = find_poison(desk, tenant)
    (mail,) = send_again(desk)
    assert listed(mail) == found
    assert mail.parsed["Subject"] == "3 new findings (2 high)"
    for kind in ("plain", "html"):
        told = mail.part(kind)
        for words in (POISON, "An address in a log", "pii.in-log", "bob", "Acme"):
            assert words not in told
        assert "refused" in told
        assert "high" in told
        assert "low" in told
    (digest,) = shown(desk, tenant)
    assert (digest["status"], digest["brief"], digest["error"]) == ("sent", True, None)
    assert standing(desk) == {"server": 0, "recipient": 0, "content": 0}


def test_a_mail_without_words_that_is_refused_too_ends_and_says_why_and_the_next_lists_all(
    desk: Desk, tenant: Tenant
) -> None:
    found = tenant.find_settled(2)
    desk.postbox.taken(Mood.NO_CONTENT)
    assert send_again(desk) == []
    (digest,) = shown(desk, tenant)
    assert (digest["status"], digest["refusals"], digest["data_at"]) == ("content_refused", 2, None)
    assert digest["error"] == "The mail server refused the mail (554 5.7.1)."
    assert digest["said"] == "554 5.7.1 (the recipient): this looks like spam\\u001b"
    refused = "the mail server refused the content of 1 digests, also without the findings' words"
    assert mail_state(desk).startswith(refused)
    assert "554 5.7.1" in mail_state(desk)
    assert "spam" not in mail_state(desk), "anyone reads it"
    assert standing(desk)["content"] == 1

    for _ in range(5):
        assert send_again(desk) == []
    assert tenant.statuses() == ["content_refused"], "one a day"
    found |= tenant.find()
    desk.wait(24.2)
    desk.postbox.taken(Mood.TAKE)
    (mail,) = send_again(desk)
    assert listed(mail) == found
    assert "may not have reached you" in mail.part("plain")
    assert [each["status"] for each in shown(desk, tenant)] == ["content_refused", "sent"]
    assert shown(desk, tenant)[1]["repeats"] == digest["id"]
    assert mail_state(desk) == "up"


def test_a_server_that_never_takes_a_mail_is_asked_twice_a_day(desk: Desk, tenant: Tenant) -> None:
    refused: list[float] = []
    desk.postbox.at_refusal = lambda: refused.append(desk.hours)
    desk.postbox.taken(Mood.NO_CONTENT)
    found = tenant.find_settled()
    for _ in range(72):
        send_again(desk)
        desk.wait(1)
    assert len(refused) == 6
    assert set(tenant.statuses()) == {"content_refused"}
    desk.postbox.taken(Mood.TAKE)
    desk.wait(24.2)
    (mail,) = send_again(desk)
    assert listed(mail) == found


def test_what_was_put_off_without_its_words_stays_without_them(desk: Desk, tenant: Tenant) -> None:
    find_poison(desk, tenant)
    assert desk.send() == []
    desk.wait(0.01)
    for mood in (Mood.CONTENT_LATER, Mood.GONE_BEFORE_DATA, Mood.BAD_SENDER):
        desk.postbox.taken(mood)
        assert desk.send() == []
        desk.wait(1.1)
    refused: list[bool] = []
    desk.postbox.at_refusal = lambda: refused.append(True)
    desk.postbox.taken(Mood.TAKE)
    (mail,) = desk.send()
    assert POISON not in mail.part("plain")
    assert refused == []


def test_an_answer_lost_on_the_mail_without_words_is_as_uncertain_as_any(
    desk: Desk, tenant: Tenant
) -> None:
    found = find_poison(desk, tenant)
    assert desk.send() == []
    desk.wait(0.01)
    desk.postbox.taken(Mood.GONE_AFTER_DOT)
    (taken,) = desk.send()
    assert listed(taken) == found
    assert tenant.statuses() == ["uncertain"]
    desk.postbox.taken(Mood.TAKE)
    desk.wait(23.9)
    assert send_again(desk) == []


def test_a_refused_recipient_is_a_state_of_its_own_tried_once_a_day(
    desk: Desk, tenant: Tenant
) -> None:
    tried: list[float] = []
    desk.postbox.at_recipient = lambda: tried.append(desk.hours)
    desk.postbox.taken(Mood.NO_RECIPIENT)
    found = tenant.find_settled()
    for _ in range(50):
        assert desk.send() == []
        desk.wait(1)
    assert len(tried) == 3
    (digest,) = shown(desk, tenant)
    assert digest["status"] == "recipient_refused"
    assert digest["error"] == "The mail server refused the recipient (550 5.1.1)."
    assert digest["said"] == "550 5.1.1 no (the recipient) here"
    assert standing(desk) == {"server": 0, "recipient": 1, "content": 0}
    assert mail_state(desk) == "up", "it is the tenant's to mend"

    desk.postbox.taken(Mood.TAKE)
    tenant.set_address("erin@example.com")
    (mail,) = desk.send()
    assert (mail.recipient, listed(mail)) == ("erin@example.com", found)
    assert shown(desk, tenant)[0]["said"] is None


@pytest.mark.parametrize(
    ("mood", "numbers"), [(Mood.BAD_SENDER, "550 5.7.1"), (Mood.NO_RELAY, "554 5.7.1")]
)
def test_a_refusal_of_the_service_is_told_to_its_operator(
    desk: Desk, tenant: Tenant, mood: Mood, numbers: str
) -> None:
    tenant.find_settled()
    desk.postbox.taken(mood)
    desk.send()
    assert shown(desk, tenant)[0]["status"] == "pending"
    assert mail_state(desk).startswith("1 digests wait: The mail server refused ")
    assert numbers in mail_state(desk)
    assert standing(desk) == {"server": 1, "recipient": 0, "content": 0}
    desk.postbox.taken(Mood.NO_SENDER)
    desk.wait(1.1)
    desk.send()
    assert mail_state(desk) == "up", "put off for now: no refusal"
    desk.postbox.taken(Mood.TAKE)
    desk.wait(1.1)
    assert len(desk.send()) == 1


def test_a_server_that_is_away_for_hours_is_told(desk: Desk, tenant: Tenant) -> None:
    tenant.find_settled()
    desk.postbox.taken(Mood.GONE_BEFORE_DATA)
    desk.send()
    assert mail_state(desk) == "up"
    desk.wait(2.1)
    desk.send()
    said = mail_state(desk)
    assert said.startswith("1 digests wait since ")
    assert said.endswith(": The mail server was not reached (it closed the connection).")


def test_clearing_the_address_ends_every_refused_state(desk: Desk, tenant: Tenant) -> None:
    other = Tenant(desk)
    other.set_address()
    for each, mood in ((tenant, Mood.NO_RECIPIENT), (other, Mood.NO_CONTENT)):
        each.find_settled()
        desk.postbox.taken(mood)
        send_again(desk)
    assert standing(desk) == {"server": 0, "recipient": 1, "content": 1}
    for each in (tenant, other):
        each.set_address(None)
    assert standing(desk) == {"server": 0, "recipient": 0, "content": 0}
    assert mail_state(desk) == "up"
