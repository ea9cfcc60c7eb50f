"""Handing a mail to a server: what was accepted, what was not, and what nobody will ever know."""

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.lib.mail.mailer import AnswerLost, Busy, Letter, NotAccepted, Outbox, Withdrawn
from app.lib.mail.smtp import Smtp
from app.lib.mail.smtp_url import MailServer, Tls
from app.lib.outbound import deadline_sockets
from tests.support.faults import until
from tests.support.servers.certificates import ServerAuthority
from tests.support.servers.mail import REFUSED, Mood, Postbox, serving

LETTER = Letter(
    "dig_1", "records@example.com", "dana@example.com", b"Subject: x\r\n\r\n.dot\r\nbody\r\n"
)


def to(postbox: Postbox, **options: float) -> Smtp:
    server = MailServer("127.0.0.1", postbox.port, Tls.IF_OFFERED)
    return Smtp(server, "records.test", **options)  # type: ignore[arg-type]


class GoAhead:
    """Counts how often it is asked."""

    def __init__(self, *, says: bool = True) -> None:
        self.asked = 0
        self._says = says

    def __call__(self) -> bool:
        self.asked += 1
        return self._says


def test_a_letter_arrives_byte_for_byte_after_one_go_ahead() -> None:
    asked = GoAhead()
    with serving() as postbox:
        to(postbox).deliver(lambda: LETTER, asked)
    (mail,) = postbox.mails
    assert (mail.sender, mail.recipient) == ("records@example.com", "dana@example.com")
    assert mail.content == LETTER.content
    assert asked.asked == 1


@pytest.mark.parametrize("mood", sorted(REFUSED, key=str))
def test_a_refusal_means_that_nothing_was_accepted(mood: Mood) -> None:
    asked = GoAhead()
    with serving() as postbox:
        postbox.taken(mood)
        with pytest.raises(NotAccepted) as refused:
            to(postbox).deliver(lambda: LETTER, asked)
    assert postbox.mails == []
    assert asked.asked == (1 if mood in (Mood.NO_DATA, Mood.NO_CONTENT) else 0)
    assert "dana" not in str(refused.value)
    assert "greylisted" not in str(refused.value)


def test_a_refusal_is_told_by_its_numbers() -> None:
    with serving() as postbox:
        postbox.taken(Mood.NO_RECIPIENT)
        with pytest.raises(NotAccepted, match=r"refused the recipient \(550 5\.1\.1\)"):
            to(postbox).deliver(lambda: LETTER, GoAhead())


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
            to(postbox, data_seconds=1).deliver(lambda: LETTER, GoAhead())
    assert len(postbox.mails) == 1


def test_without_a_go_ahead_nothing_is_sent() -> None:
    with serving() as postbox, pytest.raises(Withdrawn):
        to(postbox).deliver(lambda: LETTER, GoAhead(says=False))
    assert postbox.mails == []


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
        door = Smtp(server, "x.test", opening_seconds=1)
        with pytest.raises(NotAccepted, match="too long"):
            door.deliver(lambda: LETTER, GoAhead())
        written: list[Letter] = []

        def write() -> Letter:
            written.append(LETTER)
            return LETTER

        assert not door.ready()
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
        assert door.ready()

        def meanwhile() -> None:
            assert not door.ready()
            with pytest.raises(Busy):
                door.deliver(lambda: LETTER, GoAhead())
            begun.append("busy")

        postbox.at_recipient = meanwhile
        door.deliver(lambda: LETTER, GoAhead())
        postbox.at_recipient = lambda: None
        door.deliver(lambda: LETTER, GoAhead())
    assert begun == ["busy"]
    assert len(postbox.mails) == 2


@contextmanager
def dripping(first: bytes, then: bytes) -> Iterator[int]:
    """Serve one connection: `first` at once, then `then`, a byte at a time, for ever."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(first)
                while not over.wait(0.02):
                    try:
                        connection.sendall(then)
                    except OSError:
                        return

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        over.set()
        thread.join()


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
        trusting = deadline_sockets.tls_context(authority.ca_file)
        Smtp(server, "x.test", context=trusting).deliver(lambda: LETTER, GoAhead())
        assert postbox.signed_in == ["me"]
        wrong = MailServer("127.0.0.1", postbox.port, Tls.STARTTLS, "me", "wr0ng")
        with pytest.raises(NotAccepted, match=r"refused the sign-in \(535 5\.7\.8\)") as refused:
            Smtp(wrong, "x.test", context=trusting).deliver(lambda: LETTER, GoAhead())
        assert "wr0ng" not in f"{refused.value!r} {wrong!r}"
    assert len(postbox.mails) == 1


def test_tls_from_the_beginning(authority: ServerAuthority, server_side: ssl.SSLContext) -> None:
    with serving(at_once=server_side) as postbox:
        server = MailServer("127.0.0.1", postbox.port, Tls.AT_ONCE)
        trusting = deadline_sockets.tls_context(authority.ca_file)
        Smtp(server, "x.test", context=trusting).deliver(lambda: LETTER, GoAhead())
    assert len(postbox.mails) == 1


def test_a_certificate_that_nobody_vouches_for_is_not_trusted(server_side: ssl.SSLContext) -> None:
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
        with pytest.raises(NotAccepted, match="no way to sign in that fits"):
            Smtp(server, "x.test").deliver(lambda: LETTER, GoAhead())


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
