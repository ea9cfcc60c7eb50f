"""STARTTLS, TLS and signing in to the mail server."""

import ssl

import pytest

from app.lib.mail.mailer import MailServer, NotAccepted, Refusal, Tls
from app.lib.mail.smtp import Smtp
from app.lib.outbound import dialing
from tests.support.servers.certificates import ServerAuthority
from tests.support.servers.mail import serving
from tests.unit.mail.letters import LETTER, GoAhead, dripping


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
