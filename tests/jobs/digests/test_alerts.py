"""Alerts: each trouble told once, in one mail an hour at most, whatever becomes of the mail."""

import quopri
import re
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import text

from app import ids
from app.core.audit import view
from app.core.digests import alerts, letters, sending
from app.core.digests.alerts import Policy
from app.core.digests.troubles import Kind
from app.core.verification import alerts as breaks
from app.core.webhooks import webhooks
from app.models import AlertMail
from tests.jobs.digesting import Desk, Killed, Tenant
from tests.support.secrets import MASTER_KEYS
from tests.support.servers.mail import Mail, Mood

OPS = "ops@example.com"


class Watched(Tenant):
    """A tenant whose operators are told."""

    def watch(self, *emails: str, kinds: Sequence[str] = tuple(Kind)) -> None:
        with self._database.transaction(self.id) as session:
            alerts.change(session, self.caller, Policy(emails, kinds))

    def webhook(self) -> str:
        """Make a webhook; return its id."""
        with self._database.transaction(self.id) as session:
            wanted = {"url": "https://receiver.test/hook"}
            made, _ = webhooks.create(session, self.caller, self._desk.settings, wanted)
            return ids.text("whk", made.webhook.id)

    def fail(self, webhook: str, minutes: float = 6) -> None:
        """Have a webhook fail since so many minutes ago."""
        self._lane(
            webhook,
            "failing_since = {0}, unsuccessful_since = {0}, consecutive_failures = 9",
            minutes,
        )

    def recover(self, webhook: str) -> None:
        columns = "failing_since = NULL, unsuccessful_since = NULL, consecutive_failures = 0"
        self._lane(webhook, columns, 0)

    def break_chain(self, seq: int = 1) -> None:
        with self._database.transaction(self.id) as session:
            breaks.report_break_in(session, self.id, view.broken(seq, "bad_hash", "a", "b"))

    def mails(self) -> list[dict[str, Any]]:
        """Return what it is shown of its mails, oldest first."""
        with self._database.transaction(self.id) as session:
            rows = sending.rows(session, AlertMail, self.id, None, 50)
            return [alerts.AlertMailSchema.of(row) for row in reversed(rows)]

    def _lane(self, webhook: str, columns: str, minutes: float) -> None:
        since = f"clock_timestamp() - interval '{minutes} minutes'"
        with self._database.transaction(self.id) as session:
            change = f"UPDATE lanes SET {columns.format(since)} WHERE webhook_id = :id"
            session.execute(text(change), {"id": ids.read("whk", webhook)})


@pytest.fixture
def ops(desk: Desk) -> Watched:
    made = Watched(desk)
    made.watch(OPS)
    return made


def told(mail: Mail) -> list[str]:
    """Return what a mail's plain text links to, behind the console's address."""
    plain = words(mail).partition("Content-Type: text/html")[0]
    return [each for each in re.findall(r"/console/(\S+)", plain) if each != "alerts"]


def words(mail: Mail) -> str:
    # Headers are not quoted, and a boundary may look as if it were.
    return quopri.decodestring(mail.content).decode("utf-8", "replace")


def test_a_webhook_that_goes_on_failing_is_told_once_and_again_when_it_fails_anew(
    desk: Desk, ops: Watched
) -> None:
    webhook = ops.webhook()
    ops.fail(webhook, minutes=4)
    assert desk.send() == []
    ops.fail(webhook, minutes=6)
    (mail,) = desk.send()
    assert (mail.recipient, told(mail)) == (OPS, [f"webhooks/{webhook}"])
    assert b"List-Unsubscribe: <https://" in mail.content
    assert "What was sent: https://records.test/console/alerts\r\n" in words(mail)
    desk.wait(2)
    assert desk.send() == []
    ops.recover(webhook)
    assert desk.send() == []
    ops.fail(webhook)
    assert len(desk.send()) == 1


def test_what_begins_within_an_hour_waits_for_one_mail(desk: Desk, ops: Watched) -> None:
    first, second = ops.webhook(), ops.webhook()
    ops.fail(first)
    assert len(desk.send()) == 1
    ops.fail(second)
    ops.break_chain()
    assert desk.send() == []
    desk.wait(0.9)
    assert desk.send() == []
    desk.wait(0.2)
    (mail,) = desk.send()
    assert told(mail) == ["audit", f"webhooks/{second}"]
    assert [each["alerts"] for each in ops.mails()] == [1, 2]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (
            "refused_status = 401, unsuccessful_since = {0}, unsuccessful_deliveries = 12",
            "HTTP 401",
        ),
        ("unsuccessful_since = {0}", "410 Gone"),
    ],
)
def test_refusing_and_disabled_webhooks_are_told(
    desk: Desk, ops: Watched, change: str, what: str
) -> None:
    webhook = ops.webhook()
    ops._lane(webhook, change, 1)
    if what == "410 Gone":
        desk.run("UPDATE webhooks SET status = 'disabled', disabled_reason = 'gone'")
    (mail,) = desk.send()
    assert told(mail) == [f"webhooks/{webhook}"]
    assert what in words(mail)
    desk.wait(2)
    assert desk.send() == []


def test_a_rolled_back_history_is_told_to_everybody_who_asked(desk: Desk, ops: Watched) -> None:
    other = Watched(desk)
    other.watch("late@example.com", kinds=[Kind.WEBHOOK_FAILING])
    lost = 'INSERT INTO epochs (lost) VALUES (\'{"log": "it lacks leaves"}\')'
    desk.run(lost)
    try:
        (mail,) = desk.send()
        assert mail.recipient == OPS
        assert "it lacks leaves" in words(mail)
        desk.wait(2)
        assert desk.send() == []
    finally:
        desk.run("DELETE FROM epochs WHERE lost IS NOT NULL")


@pytest.mark.parametrize("mood", [Mood.NO_SENDER, Mood.GONE_BEFORE_DATA, Mood.CONTENT_LATER])
def test_while_the_server_is_away_everything_waits_and_goes_in_one_mail(
    desk: Desk, ops: Watched, mood: Mood
) -> None:
    first, second = ops.webhook(), ops.webhook()
    ops.fail(first)
    desk.postbox.taken(mood)
    desk.send()
    assert ops.mails()[0]["status"] == "pending"
    ops.fail(second)
    desk.wait(3)
    desk.postbox.taken(Mood.TAKE)
    (mail,) = desk.send()
    assert sorted(told(mail)) == sorted([f"webhooks/{first}", f"webhooks/{second}"])
    desk.wait(2)
    assert desk.send() == []


def test_a_mail_that_left_after_days_is_the_only_one_of_its_hour(desk: Desk, ops: Watched) -> None:
    ops.fail(ops.webhook())
    desk.postbox.taken(Mood.NO_SENDER)
    desk.send()
    desk.wait(72)
    desk.postbox.taken(Mood.TAKE)
    assert len(desk.send()) == 1
    ops.fail(ops.webhook())
    assert desk.send() == []
    desk.wait(1.5)
    assert len(desk.send()) == 1


def test_a_mail_whose_answer_was_lost_is_repeated_after_an_hour_and_says_so(
    desk: Desk, ops: Watched
) -> None:
    webhook = ops.webhook()
    ops.fail(webhook)
    desk.postbox.taken(Mood.GONE_AFTER_DOT)
    assert len(desk.send()) == 1
    assert ops.mails()[0]["status"] == "uncertain"
    desk.postbox.taken(Mood.TAKE)
    desk.wait(1)
    assert desk.send() == []
    desk.wait(0.5)
    (mail,) = desk.send()
    assert told(mail) == [f"webhooks/{webhook}"]
    assert "listed here again" in words(mail)
    desk.wait(2)
    assert desk.send() == []


@pytest.mark.parametrize(("dies", "sent"), [("before", 1), ("between", 0), ("after", 1)])
def test_a_worker_that_dies_sends_none_twice_in_an_hour_and_loses_none(
    desk: Desk, ops: Watched, dies: str, sent: int
) -> None:
    webhook = ops.webhook()
    ops.fail(webhook)
    desk.mortal.dies = dies
    with pytest.raises(Killed):
        desk.send()
    desk.wait(0.1)
    desk.send()
    # Before the go-ahead it is tried again; from then on nobody knows for an hour.
    assert len(desk.postbox.mails) == sent
    desk.wait(1.5)
    desk.send()
    assert len(desk.postbox.mails) == (1 if dies == "before" else sent + 1)
    assert told(desk.postbox.mails[-1]) == [f"webhooks/{webhook}"]


def test_two_clocks_at_once_make_one_mail(desk: Desk, ops: Watched) -> None:
    ops.fail(ops.webhook())
    with desk.runtime.database.transaction(ops.id) as session:
        alerts.note(session, ops.id)
        # Another process ticks meanwhile: it finds the tenant locked.
        desk.tick()
    desk.tick()
    desk.work()
    assert len(desk.postbox.mails) == 1


def test_each_address_has_its_own_mail_and_its_own_way_out(desk: Desk, ops: Watched) -> None:
    ops.watch(OPS, "boss@example.com")
    ops.fail(ops.webhook())
    mails = desk.send()
    assert {mail.recipient for mail in mails} == {OPS, "boss@example.com"}
    content = next(mail.content for mail in mails if mail.recipient == OPS)
    token = re.search(rb"List-Unsubscribe: <https://[^>]+/unsubscribe/([^>]+)>", content)
    assert token is not None
    named = letters.read_token(MASTER_KEYS, token[1].decode(), "alerts")
    assert named is not None
    with desk.runtime.database.transaction(ops.id) as session:
        assert alerts.leave(session, named, "request")
        assert not alerts.leave(session, named, "request")
        assert list(alerts.read(session, ops.id).emails) == ["boss@example.com"]
    desk.wait(2)
    ops.fail(ops.webhook())
    assert [mail.recipient for mail in desk.send()] == ["boss@example.com"]
    # A link of before does not end what was set anew.
    ops.watch(OPS)
    with desk.runtime.database.transaction(ops.id) as session:
        assert not alerts.leave(session, named, "request")


def test_who_is_removed_gets_nothing_more_and_who_comes_later_no_old_news(
    desk: Desk, ops: Watched
) -> None:
    ops.fail(ops.webhook())
    desk.postbox.taken(Mood.NO_SENDER)
    desk.send()
    ops.watch("new@example.com")
    desk.postbox.taken(Mood.TAKE)
    desk.wait(2)
    assert desk.send() == []
    assert [each["status"] for each in ops.mails()] == ["cancelled"]
    second = ops.webhook()
    ops.fail(second)
    (mail,) = desk.send()
    assert (mail.recipient, told(mail)) == ("new@example.com", [f"webhooks/{second}"])


def test_words_that_the_server_refuses_are_left_out(desk: Desk, ops: Watched) -> None:
    desk.postbox.objects_to = lambda content: b"receiver.test" in content
    webhook = ops.webhook()
    ops.fail(webhook)
    assert desk.send() == []
    desk.wait(0.01)
    (mail,) = desk.send()
    assert told(mail) == [f"webhooks/{webhook}"]
    assert ops.mails()[0]["brief"]


def test_a_suspended_tenant_is_told_once_it_is_resumed(desk: Desk, ops: Watched) -> None:
    ops.fail(ops.webhook())
    desk.tick()
    desk.run("UPDATE tenants SET suspended_at = now()")
    desk.work()
    assert desk.postbox.mails == []
    desk.run("UPDATE tenants SET suspended_at = NULL")
    desk.wait(1)
    assert len(desk.send()) == 1


def test_a_mail_that_waited_for_longer_than_the_history_is_kept_ends(
    desk: Desk, ops: Watched
) -> None:
    webhook = ops.webhook()
    ops.fail(webhook)
    desk.postbox.taken(Mood.NO_SENDER)
    desk.send()
    ops.recover(webhook)
    desk.run("DELETE FROM alerts")
    desk.postbox.taken(Mood.TAKE)
    desk.wait(3)
    assert desk.send() == []
    assert [each["status"] for each in ops.mails()] == ["cancelled"]
    ops.fail(webhook)
    (mail,) = desk.send()
    assert told(mail) == [f"webhooks/{webhook}"]


def test_whom_nobody_watches_costs_no_row(desk: Desk) -> None:
    nobody = Watched(desk)
    nobody.fail(nobody.webhook())
    nobody.break_chain()
    assert desk.send() == []
    with desk.owner.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM alerts")) == 0
