"""`SMTP_URL`, and letters that become files without a server."""

from pathlib import Path

import pytest

from app.lib.mail.mailer import MailServer, NotAccepted, Outbox, Tls, Withdrawn
from tests.unit.mail.letters import LETTER, GoAhead


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
