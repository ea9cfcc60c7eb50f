"""A letter is accepted once, or known not to be; slow and hung servers."""

import re
import socket
import time

import pytest

from app.lib.mail.mailer import (
    AnswerLost,
    Letter,
    MailServer,
    NotAccepted,
    Refusal,
    Tls,
)
from app.lib.mail.smtp import Smtp
from tests.support.faults import until
from tests.support.servers.mail import Mood, Postbox, serving
from tests.unit.mail.letters import LETTER, GoAhead, answering, dripping


def to(postbox: Postbox, **options: float) -> Smtp:
    server = MailServer("127.0.0.1", postbox.port, Tls.IF_OFFERED)
    return Smtp(server, "records.test", **options)  # type: ignore[arg-type]


def test_a_letter_arrives_byte_for_byte_after_one_go_ahead() -> None:
    asked = GoAhead()
    with serving() as postbox:
        to(postbox).deliver(lambda: LETTER, asked)
    (mail,) = postbox.mails
    assert (mail.sender, mail.recipient) == ("records@example.com", "dana@example.com")
    assert mail.content == LETTER.content
    assert asked.asked == 1


@pytest.mark.parametrize(
    ("at", "answer", "refusal"),
    [
        ("", "554 no", Refusal.SERVER),
        ("", "421 4.3.2 not now", None),
        ("MAIL", "550 5.1.1 who are you", Refusal.SERVER),
        ("MAIL", "530 5.7.0 sign in first", Refusal.SERVER),
        ("MAIL", "451 4.7.1 greylisted", None),
        ("RCPT", "550 5.1.1 nobody", Refusal.RECIPIENT),
        ("RCPT", "550 nobody", Refusal.RECIPIENT),
        ("RCPT", "552 5.2.2 mailbox full", Refusal.RECIPIENT),
        ("RCPT", "450 4.2.0 greylisted", None),
        ("RCPT", "452 4.2.2 mailbox full", None),
        ("RCPT", "554 5.7.1 relay access denied", Refusal.SERVER),
        ("RCPT", "530 5.7.0 sign in first", Refusal.SERVER),
        ("RCPT", "550 5.1.8 no such sender", Refusal.SERVER),
        ("RCPT", "504 5.5.2 bad name of host", Refusal.SERVER),
        ("DATA", "554 5.1.1 no valid recipients", Refusal.RECIPIENT),
        ("DATA", "554 5.7.1 rejected", Refusal.SERVER),
        ("DATA", "452 4.3.1 no room", None),
        (".", "554 5.7.1 spam", Refusal.CONTENT),
        (".", "550 spam", Refusal.CONTENT),
        (".", "552 5.3.4 too large", Refusal.CONTENT),
        (".", "550 5.1.1 nobody after all", Refusal.RECIPIENT),
        (".", "451 4.7.1 later", None),
    ],
)
def test_a_refusal_for_good_is_told_from_one_for_now_and_by_what_it_refuses(
    at: str, answer: str, refusal: Refusal | None
) -> None:
    with answering(at, answer) as port:
        door, asked = Smtp(MailServer("127.0.0.1", port, Tls.NEVER), "records.test"), GoAhead()
        with pytest.raises(NotAccepted) as refused:
            door.deliver(lambda: LETTER, asked)
    assert asked.asked == (at in ("DATA", "."))
    assert refused.value.refusal is refusal
    numbers = re.match(r"\d+( \d\.\d\.\d)?", answer)
    assert numbers is not None
    assert f"({numbers[0]})" in str(refused.value)
    assert refused.value.said == answer
    assert answer.split(maxsplit=1)[-1] not in str(refused.value)


def test_a_server_that_answers_too_late_leaves_it_open() -> None:
    with serving() as postbox:
        postbox.taken(Mood.SLOW)
        # It would answer after half a minute, and well.
        with pytest.raises(AnswerLost, match="too long"):
            to(postbox, data_seconds=0.3).deliver(lambda: LETTER, GoAhead())
    assert len(postbox.mails) == 1


def test_an_attempt_that_was_frozen_at_its_go_ahead_is_given_up() -> None:
    def frozen() -> bool:
        began = time.monotonic()
        until(lambda: time.monotonic() - began > 0.2)
        return True

    with serving() as postbox, pytest.raises(NotAccepted, match="held up"):
        to(postbox, data_seconds=0.1).deliver(lambda: LETTER, frozen)
    assert postbox.mails == []


def test_a_server_that_is_not_there_is_said_so() -> None:
    with pytest.raises(NotAccepted, match="refused the connection"):
        Smtp(MailServer("127.0.0.1", 1, Tls.NEVER), "x.test").deliver(lambda: LETTER, GoAhead())


def test_a_server_that_hung_is_left_alone_for_a_while() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = MailServer("127.0.0.1", silent.getsockname()[1], Tls.NEVER)
        door = Smtp(server, "x.test", opening_seconds=0.2)
        with pytest.raises(NotAccepted, match="too long"):
            door.deliver(lambda: LETTER, GoAhead())
        written: list[Letter] = []

        def write() -> Letter:
            written.append(LETTER)
            return LETTER

        for _ in range(5):
            with pytest.raises(NotAccepted, match="a moment ago"):
                door.deliver(write, GoAhead())
        assert written == []
        # One conversation was begun, the first.
        silent.accept()[0].close()
        silent.settimeout(0)
        with pytest.raises(BlockingIOError):
            silent.accept()


@pytest.mark.parametrize(
    ("first", "then"),
    [(b"", b"2"), (b"220-", b"x"), (b"", b"220-x\r\n"), (b"220 x\r\n", b"250-x\r\n")],
)
def test_a_server_that_drips_is_left_within_the_time_for_the_whole(
    first: bytes, then: bytes
) -> None:
    with dripping(first, then) as port:
        server = MailServer("127.0.0.1", port, Tls.NEVER)
        # It drips for as long as this lasts.
        with pytest.raises(NotAccepted):
            Smtp(server, "x.test", opening_seconds=0.4).deliver(lambda: LETTER, GoAhead())
