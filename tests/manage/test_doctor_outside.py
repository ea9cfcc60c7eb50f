"""The doctor on what lies outside: authority, witnesses, mail server, receivers."""

import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from ipaddress import ip_network
from pathlib import Path
from uuid import UUID

import pytest

from app import ids
from app.core.callers import Caller, Role
from app.core.health.parts import State
from app.core.webhooks import webhooks
from app.database import Database
from app.evidence.timestamps import read_certificates
from app.ledger.policy import Policy
from app.lib.mail.mailer import MailServer
from app.manage.doctor import command
from dev.tsa import TimestampAuthority
from tests.support.database.doctoring import Installation
from tests.support.evidence.witnesses import Witness
from tests.support.faults import until
from tests.support.servers.certificates import ServerAuthority
from tests.support.servers.mail import Mood, serving
from tests.support.servers.receivers import LOOPBACK, Listener, Receiver, Request, http_answer

AddWebhook = Callable[[str], None]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TimestampAuthority]:
    """Return an authority that stamps."""
    with TimestampAuthority(tmp_path_factory.mktemp("tsa")) as made:
        yield made


@pytest.fixture
def closed_port() -> Iterator[int]:
    """Return a port on which nothing listens as long as the test runs."""
    with closing(socket.socket()) as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def trusting(here: Installation, url: str, ca_file: Path) -> None:
    """Name an authority, with a secret in its URL."""
    trusted = read_certificates(ca_file.read_bytes())
    here.change(tsa_url=f"{url}?token=a-secret", tsa_ca_file=trusted)


def test_an_authority_that_asks_for_a_login_is_told_and_the_login_is_not(
    here: Installation, authority: TimestampAuthority
) -> None:
    assert "no external evidence anchors the log" in here.warned("timestamps")
    login = "Bearer a-secret-token"

    def answer(request: Request) -> bytes:
        if request.headers.get("authorization") != login:
            return http_answer(403)
        return http_answer(200, authority.reply(request.body))

    with Receiver(answer) as receiver:
        trusting(here, receiver.url(), authority.ca_file)
        here.change(tsa_authorization="Bearer a-secret-mistake")
        said = here.failing("timestamps")
        assert "403: TSA_AUTHORIZATION is not what it asks for" in said
        assert "a-secret" not in said
        here.change(tsa_authorization=login)
        (one,) = here.found("timestamps")["timestamps"]
    assert one.state is State.OK
    assert "a-secret" not in one.text


def test_an_authority_that_gives_no_stamp_is_told_without_its_secret(
    here: Installation, authority: TimestampAuthority, closed_port: int, tmp_path: Path
) -> None:
    away = f"http://127.0.0.1:{closed_port}/"
    for url, root, why in (
        (away, authority.ca_file, "connection refused"),
        (authority.url, TimestampAuthority(tmp_path).ca_file, "gives none that counts"),
    ):
        trusting(here, url, root)
        said = here.failing("timestamps")
        assert why in said
        assert "set TSA_CA_FILE to that authority's root" in said
        assert "a-secret" not in said


def policy(*witnesses: tuple[Witness, str], quorum: int = 1) -> Policy:
    """Return a policy of witnesses at these URLs."""
    lines = [f"witness {each.name} {each.vkey} {url}" for each, url in witnesses]
    names = " ".join(each.name for each, _ in witnesses)
    text = [*lines, f"group some {quorum} {names}", "quorum some"]
    return Policy.parse("".join(f"{line}\n" for line in text).encode())


def test_a_witness_is_asked_and_one_that_is_away_fails_where_the_quorum_needs_it(
    here: Installation, closed_port: int
) -> None:
    away = (Witness("away.test/w"), f"http://127.0.0.1:{closed_port}/")
    with Receiver(http_answer(400)) as server:
        there = (Witness("there.test/w"), server.url("/prefix"))
        here.change(witness_policy=policy(there))
        assert here.states("witnesses") == {State.OK}, "whatever it answers"
        (asked,) = server.requests
        assert (asked.path, asked.body) == ("/prefix/add-checkpoint", b"")
        here.change(witness_policy=policy(away, there, quorum=1))
        assert "away.test/w" in here.warned("witnesses")
        here.change(witness_policy=policy(away, there, quorum=2))
        assert "connection refused" in here.failing("witnesses")
    with Receiver(http_answer(404)) as server:
        here.change(witness_policy=policy((Witness("one.test/w"), server.url("/wrong"))))
        assert "answers with the status 404" in here.warned("witnesses")


def test_what_is_not_anchored_and_an_alarm_are_told(here: Installation) -> None:
    here.run(
        "INSERT INTO anchoring_troubles (part, since, detail, alarm) VALUES"
        " ('timestamps', clock_timestamp(), 'It is away.', false),"
        " ('witness one', clock_timestamp(), 'It cosigned another log.', true)"
    )
    assert "It is away." in here.warned("anchoring")
    assert "ALARM: witness one" in here.failing("anchoring")


def mail_server(port: int, password: str = "right") -> MailServer:
    return MailServer.parse(f"smtp://user:{password}@localhost:{port}")


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> ServerAuthority:
    """Return an authority for servers of the test."""
    return ServerAuthority(tmp_path_factory.mktemp("authority"))


def test_a_mail_server_is_signed_in_to_and_gets_no_mail_and_its_password_is_not_told(
    here: Installation, tls: ServerAuthority, closed_port: int
) -> None:
    here.change(mail_from="records@example.com")
    with serving(starttls=tls.server("localhost"), password="right") as postbox:
        here.change(smtp_url=mail_server(postbox.port))
        assert here.states("mail") == {State.OK}
        assert (postbox.signed_in, postbox.mails) == (["user"], [])
        here.change(smtp_url=mail_server(postbox.port, "a-secret"))
        said = here.failing("mail")
        assert "refused the sign-in (535" in said
        assert "a-secret" not in said
    with serving() as postbox:
        postbox.taken(Mood.NO_SENDER)
        here.change(smtp_url=MailServer.parse(f"smtp://127.0.0.1:{postbox.port}"))
        assert "refused the sender (451 4.7.1)" in here.failing("mail")
    here.change(smtp_url=MailServer.parse(f"smtp://127.0.0.1:{closed_port}"))
    assert "it refused the connection" in here.failing("mail")


@pytest.mark.parametrize(
    ("refusal", "level", "said"),
    [
        ("server", State.FAILED, "1 digests wait: The mail server refused it (550). → have the"),
        ("recipient", State.WARNING, "refuses the recipients of 1 digests → have those tenants"),
    ],
)
def test_digests_that_the_mail_server_refuses_for_good_are_told(
    here: Installation, tenant_id: UUID, refusal: str, level: State, said: str
) -> None:
    here.run(
        "INSERT INTO digests (tenant_id, id, series, refusal, error, said) VALUES"
        " (:tenant, :tenant, :tenant, :refusal, 'The mail server refused it (550).', 'x')",
        tenant=tenant_id,
        refusal=refusal,
    )
    with serving() as postbox:
        here.change(smtp_url=MailServer.parse(f"smtp://127.0.0.1:{postbox.port}"))
        assert said in here.failing("mail", level)


@pytest.fixture
def add_webhook(here: Installation, database_here: Database, tenant_id: UUID) -> AddWebhook:
    """Return a function that gives the tenant a webhook."""
    caller = Caller(tenant_id, ids.new(), Role.ADMIN, None, "test")

    def add(url: str) -> None:
        with database_here.transaction(tenant_id) as session:
            webhooks.create(session, caller, here.settings, {"url": url})

    return add


def test_receivers_are_connected_to_by_tls_and_sent_nothing(
    here: Installation, add_webhook: AddWebhook, tls: ServerAuthority
) -> None:
    assert here.states("webhooks") == {State.NOT_CHECKED}, "there is none yet"
    here.change(
        webhook_allowed_networks=LOOPBACK, webhook_ca_file=Path(tls.ca_file).read_text("utf-8")
    )
    with Receiver(tls=tls.server("127.0.0.1")) as server:
        for path in ("/one?token=a-secret", "/two"):
            add_webhook(server.url(path))
        (one,) = here.found("webhooks")["webhooks"]
        assert one.text == "1 of 1 receivers are reached"
        assert (server.connections, server.requests) == (1, [])


def test_with_everything_set_all_is_checked_and_well(
    healthy: Installation, add_webhook: AddWebhook, authority: TimestampAuthority
) -> None:
    trusting(healthy, authority.url, authority.ca_file)
    with Receiver(http_answer(400)) as server, serving() as postbox:
        healthy.change(
            witness_policy=policy((Witness("one.test/w"), server.url("/prefix"))),
            smtp_url=MailServer.parse(f"smtp://127.0.0.1:{postbox.port}"),
            mail_from="records@example.com",
            webhook_allowed_networks=LOOPBACK,
        )
        add_webhook(server.url())
        parts = [each for found in healthy.found().values() for each in found]
    assert {each.state for each in parts} == {State.OK}
    assert command.exit_status(parts) == 0


def test_one_receiver_that_is_away_is_its_owner_s_and_all_mean_that_the_way_out_is_closed(
    here: Installation, add_webhook: AddWebhook, closed_port: int
) -> None:
    here.change(webhook_allowed_networks=LOOPBACK)
    with Listener(lambda _: None) as server:
        add_webhook(server.url())
        add_webhook(f"http://127.0.0.1:{closed_port}/hook/a-secret")
        said = here.warned("webhooks")
        assert "connection refused" in said
        assert "a-secret" not in said
        until(lambda: server.connections == 1)
        here.change(webhook_allowed_networks=(ip_network("10.0.0.0/8"),))
        assert "not public" in here.found("webhooks")["webhooks"][1].text
        assert server.connections == 1
    here.change(webhook_allowed_networks=LOOPBACK)
    assert "none of 2 receivers is reached" in here.failing("webhooks")
