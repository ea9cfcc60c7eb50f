"""The SSRF guard, redirects and the environment: addresses that a POST may reach."""

import errno
import ipaddress
import socket
import time
from pathlib import Path

import pytest

from app.lib.outbound import certificates, dialing
from app.lib.outbound.addresses import Address, RefusedAddress, Target
from app.lib.outbound.attempt import Attempt
from app.lib.outbound.client import Outbound
from app.lib.outbound.dialing import Dialer
from app.lib.outbound.failures import Failure
from app.lib.outbound.resolver import Resolver
from tests.support.servers.certificates import ServerAuthority
from tests.support.servers.receivers import LOOPBACK, Receiver, http_answer
from tests.unit.delivery.outbound.posting import HERE, Names, post

ELSEWHERE = ipaddress.ip_address("127.0.0.2")
ONLY_HERE = [ipaddress.ip_network("127.0.0.1/32")]
SPELLINGS_OF_LOOPBACK = [
    *("2130706433", "0177.0.0.1", "0x7f.0.0.1", "0x7f000001", "127.1", "127.0.1", "0"),
    *("[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[::]"),
    *("127.0.0.1.", "[::1%25lo]", "user@127.0.0.1", "0.0.0.0"),
]


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("host", SPELLINGS_OF_LOOPBACK)
def test_no_spelling_of_loopback_reaches_a_listener(scheme: str, host: str) -> None:
    with Receiver() as receiver:
        for allowed in ((), LOOPBACK):
            client = Outbound(allowed)
            answer = post(client, f"{scheme}://{host}:{receiver.port}/", seconds=1)
            assert answer.failure is Failure.BAD_URL
            client.close()
    assert receiver.connections == 0


@pytest.mark.parametrize(
    "host", ["2130706433", "0177.0.0.1", "0x7f.1", "127.1", "localhost", "::1"]
)
def test_the_dialer_alone_refuses_what_resolves_to_loopback(host: str) -> None:
    dialer = Dialer(Resolver(), (), (), certificates.of_receivers(None))
    with Receiver() as receiver, pytest.raises(RefusedAddress):
        dialer.open(Target("https", host, receiver.port, "/"), Attempt(time.monotonic(), 5))
    assert receiver.connections == 0


@pytest.mark.parametrize(
    "addresses", [[HERE, ELSEWHERE], [ELSEWHERE, HERE], [ELSEWHERE]], ids=["last", "first", "only"]
)
def test_one_forbidden_answer_of_the_resolver_refuses_all(addresses: list[Address]) -> None:
    client = Outbound(ONLY_HERE, lookup=Names(addresses))
    with Receiver() as receiver, Receiver(host="127.0.0.2") as other:
        for port in (receiver.port, other.port):
            answer = post(client, f"http://hooks.example.com:{port}/")
            assert answer.failure is Failure.REFUSED_ADDRESS
            assert answer.error is not None
            assert "127" not in answer.error
    client.close()
    assert receiver.connections == other.connections == 0


@pytest.mark.usefixtures("without_rest")
def test_a_name_that_changes_its_address_is_looked_up_once_a_connection() -> None:
    names = Names([HERE], [ELSEWHERE])
    client = Outbound(ONLY_HERE, lookup=names)
    with Receiver(host="127.0.0.2") as forbidden, Receiver() as receiver:
        url = f"http://hooks.example.com:{receiver.port}/"
        assert post(client, url).succeeded
        assert post(client, url).succeeded
        assert names.asked == ["hooks.example.com"]
        client.close()
        assert post(client, url).failure is Failure.REFUSED_ADDRESS
        url = f"http://hooks.example.com:{forbidden.port}/"
        assert post(client, url).failure is Failure.REFUSED_ADDRESS
    client.close()
    assert (receiver.connections, forbidden.connections) == (1, 0)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_every_connection_is_opened_by_the_dialer(
    scheme: str, authority: ServerAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone_round(*args: object, **kwargs: object) -> None:
        raise AssertionError("a name was resolved, or dialled, without the guard")

    monkeypatch.setattr(socket, "create_connection", gone_round)
    monkeypatch.setattr(socket, "getaddrinfo", gone_round)
    names = Names([HERE])
    client = Outbound(LOOPBACK, authorities=authority.pem, lookup=names)
    tls = authority.server("hooks.example.com") if scheme == "https" else None
    with Receiver(tls=tls) as receiver:
        assert post(client, receiver.url(host="hooks.example.com")).succeeded
    client.close()
    assert names.asked == ["hooks.example.com"]


def test_unencrypted_traffic_to_a_public_address_is_refused_unsent() -> None:
    client = Outbound(LOOPBACK, lookup=Names([ipaddress.ip_address("8.8.8.8")]))
    answer = post(client, "http://hooks.example.com/")
    assert answer.failure is Failure.REFUSED_ADDRESS
    assert "https://" in (answer.error or "")


def test_the_next_address_is_tried_when_one_refuses() -> None:
    client = Outbound(LOOPBACK, lookup=Names([ipaddress.ip_address("::1"), ELSEWHERE, HERE]))
    with Receiver() as receiver:
        assert post(client, receiver.url(host="hooks.example.com")).succeeded
    client.close()


def test_a_dead_address_comes_last_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    connect = dialing._connect

    def noted(address: Address, port: int, seconds: float) -> socket.socket:
        tried.append(str(address))
        return connect(address, port, seconds)

    monkeypatch.setattr(dialing, "_connect", noted)
    client = Outbound(LOOPBACK, lookup=Names([ELSEWHERE, HERE]))
    with Receiver() as receiver:
        url = receiver.url(host="hooks.example.com")
        for owner in ("first", "second"):
            assert post(client, url, owner=owner).succeeded
        assert tried == ["127.0.0.2", "127.0.0.1", "127.0.0.1"]
        monkeypatch.setattr(dialing, "DEAD_SECONDS", 0.0)
        with Receiver(host="127.0.0.2", port=receiver.port) as back:
            receiver.close()
            assert post(client, url, owner="third").succeeded
            # The other one is dead now, and for no time.
            assert post(client, url, owner="fourth").succeeded
            assert len(back.requests) == 2
    client.close()


def test_an_address_of_a_family_without_a_route_does_not_refuse_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect = dialing._connect

    def routed(address: Address, port: int, seconds: float) -> socket.socket:
        if address.version == 6:
            raise OSError(errno.ENETUNREACH, "Network is unreachable")
        return connect(address, port, seconds)

    monkeypatch.setattr(dialing, "_connect", routed)
    public = ipaddress.ip_address("2606:4700:4700::1111")
    allowed = [*LOOPBACK, ipaddress.ip_network("2606:4700:4700::/48")]
    client = Outbound(allowed, lookup=Names([public, HERE]))
    with Receiver() as receiver:
        assert post(client, receiver.url(host="hooks.example.com")).succeeded
    client.close()


def test_an_ipv6_literal_is_sent_to(outbound: Outbound) -> None:
    with Receiver(host="::1") as receiver:
        assert post(outbound, receiver.url(host="[::1]")).succeeded
    assert receiver.requests[0].headers["host"] == f"[::1]:{receiver.port}"


def test_localhost_is_resolved_by_the_system(outbound: Outbound) -> None:
    with Receiver() as receiver:
        assert post(outbound, receiver.url(host="localhost")).succeeded


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_an_answer_and_is_never_followed(outbound: Outbound, status: int) -> None:
    with Receiver() as target:
        with Receiver(http_answer(status, headers={"Location": target.url()})) as receiver:
            answer = post(outbound, receiver.url())
        assert answer.status == status
        assert not answer.succeeded
    assert target.connections == 0


def test_the_environment_is_not_asked_for_proxies_or_credentials(
    outbound: Outbound, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login user password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    with Receiver() as proxy, Receiver() as receiver:
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url("/"))
        assert post(outbound, receiver.url()).succeeded
    assert proxy.connections == 0
    assert "authorization" not in receiver.requests[0].headers


def test_no_cookie_is_kept(outbound: Outbound) -> None:
    with Receiver(http_answer(200, headers={"Set-Cookie": "id=1; Path=/"})) as receiver:
        for _ in range(2):
            assert post(outbound, receiver.url()).succeeded
    assert all("cookie" not in request.headers for request in receiver.requests)
