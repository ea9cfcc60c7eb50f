"""Whatever happens in whatever order: never two mails in 24 hours, and no finding in none."""

from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from app.core.digests import digest_mail
from app.settings import Settings
from tests.jobs.digesting import Desk, Tenant, desk_at, killed, listed
from tests.support.servers.mail import Mood, Postbox, serving

# Hours after it was told DATA, at which a slow server takes a mail, and says so; and at which one
# takes it that nobody waits for any more.
_LATE, _LATER = 59 / 3600, 10 / 60
# What the other moods come to is what one of these does.
_MOODS = [
    *(Mood.TAKE, Mood.GONE_AFTER_DOT, Mood.GONE_BEFORE_DOT),
    *(Mood.RECIPIENT_LATER, Mood.NO_RECIPIENT, Mood.NO_CONTENT),
]
# One rule for all: Hypothesis leaves some rules out of most runs, and a mail takes four of them.
_DEEDS: list[tuple[str, object]] = [
    *[("find", count) for count in (1, 1, 2, 3)],
    *[("send", mood) for mood in (*_MOODS, Mood.TAKE)],
    *[("work", mood) for mood in _MOODS],
    *[("crash", moment) for moment in ("before", "between", "after")],
    *[("wait", hours) for hours in (0.1, 0.3, 0.3, 1.1, 1.1, 12.0, 23.0, 24.2, 24.2)],
    *[("set_address", who) for who in ("dana@example.com", "erin@example.com", None)],
    *[("take_late", (Mood.TAKE, _LATE))] * 2,
    ("take_late", (Mood.GONE_AFTER_DOT, _LATER)),
    *[("wait", 24 - late / 2) for late in (_LATE, _LATER)],
    ("tick", None),
]


class Digests(RuleBasedStateMachine):
    """One tenant; what each mail listed, and what each must have listed in the end."""

    desk: Desk

    def __init__(self) -> None:
        super().__init__()
        self.tenant = Tenant(self.desk)
        self.address: str | None = None
        self.expected: set[str] = set()
        self.forbidden: set[str] = set()
        self.heard: set[str] = set()
        self.sent_at: list[float] = []
        self.seen = 0
        self.desk.postbox.mails.clear()
        self.set_address("dana@example.com")

    @rule(deed=st.sampled_from(_DEEDS))
    def happens(self, deed: tuple[str, Any]) -> None:
        name, argument = deed
        getattr(self, name)(argument)

    def find(self, count: int) -> None:
        found = self.tenant.find(count)
        if self.address is None:
            self.forbidden |= found
        else:
            self.expected |= found

    def set_address(self, address: str | None) -> None:
        self.tenant.set_address(address)
        self.address = address
        if address is None:
            self.forbidden |= self.expected
            self.expected = set()

    def tick(self, _: None) -> None:
        self.desk.tick()

    def work(self, mood: Mood) -> None:
        """Work with a server in this mood, also on what the clock has not looked at."""
        self.desk.postbox.taken(mood)
        self.desk.work()
        self.note_mails()

    def send(self, mood: Mood) -> None:
        self.desk.tick()
        self.work(mood)

    def take_late(self, how: tuple[Mood, float]) -> None:
        """Send to a server that takes the mail so many hours after DATA."""
        mood, hours = how
        self.desk.postbox.at_content = lambda: self.desk.wait(hours)
        self.send(mood)
        self.desk.postbox.at_content = lambda: None

    def crash(self, moment: str) -> None:
        self.desk.postbox.taken(Mood.TAKE)
        self.desk.mortal.dies = moment
        killed(self.desk.send)
        self.desk.mortal.dies = None
        self.note_mails()

    def wait(self, hours: float) -> None:
        self.desk.wait(hours)

    def note_mails(self) -> None:
        """Note the mails since the last call: no time passed since the server took them."""
        for mail in self.desk.postbox.mails[self.seen :]:
            assert mail.recipient == self.address
            found = listed(mail)
            assert found, "a mail about nothing"
            assert not found & self.forbidden
            self.heard |= found
            self.sent_at.append(self.desk.hours)
        self.seen = len(self.desk.postbox.mails)

    @invariant()
    def never_two_in_a_day(self) -> None:
        between = zip(self.sent_at, self.sent_at[1:], strict=False)
        assert all(later - earlier >= 24 for earlier, later in between), self.sent_at

    def teardown(self) -> None:
        """Let the world be well for some days: by then every finding has been listed."""
        self.desk.postbox.taken(Mood.TAKE)
        for _ in range(4):
            self.desk.wait(24.2)
            self.desk.send()
            self.note_mails()
            self.never_two_in_a_day()
        assert self.expected <= self.heard, "a finding that no mail lists"
        self.tenant.set_address(None)


def test_never_two_mails_in_a_day_and_no_finding_in_none(
    own_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a mail lists can be read from it.
    monkeypatch.setattr(digest_mail, "MOST_FINDINGS", 10_000)
    with serving(Postbox()) as postbox, desk_at(own_settings, postbox) as desk:
        machine = type("Machine", (Digests,), {"desk": desk})
        run_state_machine_as_test(
            machine,
            settings=hypothesis_settings(max_examples=6, stateful_step_count=40),
        )
