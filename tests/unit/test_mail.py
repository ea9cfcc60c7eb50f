"""A letter is accepted once, or known not to be: slow and hung servers, TLS, sign-in, files."""

import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.lib.mail.mailer import (
    AnswerLost,
    Busy,
    Letter,
    MailServer,
    NotAccepted,
    Outbox,
    Refusal,
    Tls,
    Withdrawn,
)
from app.lib.mail.smtp import Smtp
from app.lib.outbound import dialing
from tests.support.faults import until
from tests.support.servers.certificates import ServerAuthority
from tests.support.servers.mail import Mood, Postbox, serving
from tests.support.servers.receivers import Listener

LETTER = Letter(
    "dig_1", "records@example.com", "dana@example.com", b"Subject: x\r\n\r\n.dot\r\nbody\r\n"
)


class GoAhead:
    """Counts how often it is asked."""

    def __init__(self, *, says: bool = True) -> None:
        self.asked = 0
        self._says = says

    def __call__(self) -> bool:
        self.asked += 1
        return self._says


@contextmanager
def dripping(first: bytes, then: bytes) -> Iterator[int]:
    """Serve each connection: `first` at once, then `then`, a byte at a time, for ever."""
    over = threading.Event()

    def serve(connection: socket.socket) -> None:
        connection.sendall(first)
        while not over.wait(0.02):
            connection.sendall(then)

    # It waits for no sender: one whose time was up before it connected never comes.
    with Listener(serve) as listener:
        try:
            yield listener.port
        finally:
            over.set()


@contextmanager
def answering(at: str, answer: str) -> Iterator[int]:
    """Serve mail, and answer one word, the final dot (`.`), or the connection, with this line."""

    def serve(connection: socket.socket) -> None:
        with connection, connection.makefile("rwb") as talk:
            said = answer.encode() if not at else b"220 here"
            in_content = False
            while True:
                talk.write(said + b"\r\n")
                talk.flush()
                line = talk.readline()
                while in_content and line not in (b".\r\n", b""):
                    line = talk.readline()
                word = line[:4].strip().decode().upper()
                if word in ("", "QUIT"):
                    return
                said = b"250 OK"
                in_content = word == "DATA" and at != "DATA"
                if in_content:
                    said = b"354 go on"
                if word == at:
                    said = answer.encode()

    with Listener(serve) as listener:
        yield listener.port


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


@pytest.mark.parametrize("mood", [Mood.GONE_BEFORE_DOT, Mood.GONE_AFTER_DOT])
def test_a_connection_lost_after_the_go_ahead_leaves_it_open(mood: Mood) -> None:
    with serving() as postbox:
        postbox.taken(mood)
        with pytest.raises(AnswerLost):
            to(postbox).deliver(lambda: LETTER, GoAhead())
    assert len(postbox.mails) == (mood is Mood.GONE_AFTER_DOT)


def test_a_server_that_answers_too_late_leaves_it_open() -> None:
    with serving() as postbox:
        postbox.taken(Mood.SLOW)
        # It would answer after half a minute, and well.
        with pytest.raises(AnswerLost, match="too long"):
            to(postbox, data_seconds=0.3).deliver(lambda: LETTER, GoAhead())
    assert len(postbox.mails) == 1


def test_what_the_go_ahead_raises_comes_through() -> None:
    def away() -> bool:
        raise LookupError("the database is away")

    with serving() as postbox, pytest.raises(LookupError):
        to(postbox).deliver(lambda: LETTER, away)
    assert postbox.mails == []


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


def test_one_letter_at_a_time() -> None:
    with serving() as postbox:
        door = to(postbox)
        begun: list[str] = []

        def meanwhile() -> None:
            with pytest.raises(Busy):
                door.deliver(lambda: LETTER, GoAhead())
            begun.append("busy")

        postbox.at_recipient = meanwhile
        door.deliver(lambda: LETTER, GoAhead())
        postbox.at_recipient = lambda: None
        door.deliver(lambda: LETTER, GoAhead())
    assert begun == ["busy"]
    assert len(postbox.mails) == 2


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


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> ServerAuthority:
    return ServerAuthority(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def server_side(authority: ServerAuthority) -> ssl.SSLContext:
    return authority.server("localhost", "127.0.0.1")


def test_starttls_with_a_password(authority: ServerAuthority, server_side: ssl.SSLContext) -> None:
    with serving(starttls=server_side, password="s3cret") as postbox:
        server = MailServer("127.0.0.1", postbox.port, Tls.STARTTLS, "me", "s3cret")
        trusting = dialing.verifying(authority.ca_file)
        Smtp(server, "x.test", context=trusting).deliver(lambda: LETTER, GoAhead())
        assert postbox.signed_in == ["me"]
        wrong = MailServer("127.0.0.1", postbox.port, Tls.STARTTLS, "me", "wr0ng")
        with pytest.raises(NotAccepted, match=r"refused the sign-in \(535 5\.7\.8\)") as refused:
            Smtp(wrong, "x.test", context=trusting).deliver(lambda: LETTER, GoAhead())
        assert "wr0ng" not in f"{refused.value!r} {wrong!r}"
        assert refused.value.refusal is Refusal.SERVER, "its operator's, and not this mail's"
    assert len(postbox.mails) == 1


def test_tls_from_the_beginning(authority: ServerAuthority, server_side: ssl.SSLContext) -> None:
    with serving(at_once=server_side) as postbox:
        server = MailServer("127.0.0.1", postbox.port, Tls.AT_ONCE)
        trusting = dialing.verifying(authority.ca_file)
        Smtp(server, "x.test", context=trusting).deliver(lambda: LETTER, GoAhead())
    assert len(postbox.mails) == 1


def test_a_certificate_of_an_unknown_authority_is_not_trusted(server_side: ssl.SSLContext) -> None:
    with serving(starttls=server_side) as postbox:
        server = MailServer("127.0.0.1", postbox.port, Tls.STARTTLS)
        with pytest.raises(NotAccepted, match="not trusted"):
            Smtp(server, "x.test").deliver(lambda: LETTER, GoAhead())


def test_on_this_machine_any_certificate_will_do(server_side: ssl.SSLContext) -> None:
    with serving(starttls=server_side) as postbox:
        server = MailServer.parse(f"smtp://localhost:{postbox.port}")
        Smtp(server, "x.test").deliver(lambda: LETTER, GoAhead())
    assert len(postbox.mails) == 1


@pytest.mark.parametrize("offered", ["250 x", "250-x\r\n250 AUTH GSSAPI"])
def test_a_server_with_no_way_to_sign_in_that_fits_is_said_so(offered: str) -> None:
    with dripping(f"220 x\r\n{offered}\r\n".encode(), b"") as port:
        server = MailServer("127.0.0.1", port, Tls.NEVER, "me", "s3cret")
        with pytest.raises(NotAccepted, match="no way to sign in that fits") as refused:
            Smtp(server, "x.test").deliver(lambda: LETTER, GoAhead())
    assert refused.value.refusal is Refusal.SERVER


def test_a_server_that_offers_no_starttls_is_told_nothing() -> None:
    with serving() as postbox:
        server = MailServer("127.0.0.1", postbox.port, Tls.STARTTLS, "me", "s3cret")
        with pytest.raises(NotAccepted, match="no STARTTLS"):
            Smtp(server, "x.test").deliver(lambda: LETTER, GoAhead())
    assert postbox.mails == []


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("smtp://mail.example.com", ("mail.example.com", 587, Tls.STARTTLS, None, None)),
        ("smtps://mail.example.com/", ("mail.example.com", 465, Tls.AT_ONCE, None, None)),
        ("smtp://a:b%40c@mail.example.com:25", ("mail.example.com", 25, Tls.STARTTLS, "a", "b@c")),
        ("smtp://localhost:1025", ("localhost", 1025, Tls.IF_OFFERED, None, None)),
        ("smtp://[::1]:1025", ("::1", 1025, Tls.IF_OFFERED, None, None)),
        ("smtp://relay.internal:25?tls=off", ("relay.internal", 25, Tls.NEVER, None, None)),
    ],
)
def test_the_url_says_how_the_server_is_talked_to(url: str, expected: tuple[object, ...]) -> None:
    read = MailServer.parse(url)
    assert (read.host, read.port, read.tls, read.user, read.password) == expected


@pytest.mark.parametrize(
    "url",
    [
        "mail.example.com",
        "http://mail.example.com",
        "smtp://",
        "smtp://mail.example.com:port",
        "smtp://mail.example.com:99999",
        "smtp://me:hunter2@mail.example.com/box",
        "smtp://me@mail.example.com",
        "smtp://me:hunter2@mail.example.com?tls=off",
        "smtp://me:hunter2@mail.example.com?tls=maybe",
        "smtp://me:hunter2@mail.example.com?starttls=no",
        "smtps://mail.example.com?tls=off",
        "smtp://me:hunter2%0d%0aRSET@mail.example.com",
        "smtp://me:hunter2\u00e4@mail.example.com",
        "smtp://me:hunter2@[mail.example.com",
    ],
)
def test_a_url_that_is_wrong_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        MailServer.parse(url)
    assert "hunter2" not in str(refused.value)


def test_without_a_server_a_letter_becomes_a_file(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "data" / "mail")
    for _ in range(2):
        outbox.deliver(lambda: LETTER, GoAhead())
    (file,) = (tmp_path / "data" / "mail").iterdir()
    assert (file.name, file.read_bytes()) == ("dig_1.eml", LETTER.content)
    assert file.stat().st_mode & 0o77 == 0
    with pytest.raises(Withdrawn):
        outbox.deliver(lambda: LETTER, GoAhead(says=False))


def test_a_file_that_cannot_be_written_is_no_mail(tmp_path: Path) -> None:
    (tmp_path / "mail").write_text("in the way")
    with pytest.raises(NotAccepted, match="was not written"):
        Outbox(tmp_path / "mail").deliver(lambda: LETTER, GoAhead())
