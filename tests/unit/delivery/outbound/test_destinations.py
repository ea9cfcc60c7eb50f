"""Where a POST may go: the SSRF guard, redirects, the environment, certificates."""

import errno
import ipaddress
import os
import socket
import ssl
import time
from collections.abc import Sequence
from pathlib import Path

import certifi
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from app.lib.outbound import dialing
from app.lib.outbound.addresses import Address, RefusedAddress, Target
from app.lib.outbound.attempt import Attempt, Failure
from app.lib.outbound.client import Outbound
from app.lib.outbound.dialing import Dialer, Resolver
from tests.support.servers.certificates import (
    ROOT,
    Extension,
    PrivateKey,
    ServerAuthority,
    issue,
    private_key,
)
from tests.support.servers.receivers import LOOPBACK, OK, Listener, Receiver, http_answer
from tests.unit.delivery.outbound.posting import HERE, Names, post

ELSEWHERE = ipaddress.ip_address("127.0.0.2")
ONLY_HERE = [ipaddress.ip_network("127.0.0.1/32")]
SPELLINGS_OF_LOOPBACK = [
    *("2130706433", "0177.0.0.1", "0x7f.0.0.1", "0x7f000001", "127.1", "127.0.1", "0"),
    *("[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[::]"),
    *("127.0.0.1.", "[::1%25lo]", "user@127.0.0.1", "0.0.0.0"),
]


@pytest.mark.parametrize(
    "host", ["2130706433", "0177.0.0.1", "0x7f.1", "127.1", "localhost", "::1"]
)
def test_the_dialer_alone_refuses_what_resolves_to_loopback(host: str) -> None:
    dialer = Dialer(Resolver(), (), (), dialing.of_receivers(None))
    with Receiver() as receiver, pytest.raises(RefusedAddress):
        dialer.open(Target("https", host, receiver.port, "/"), Attempt(time.monotonic(), 5))
    assert receiver.connections == 0


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


def test_a_certificate_for_the_name_is_accepted_and_the_name_is_asked_for(
    trusting: Outbound, authority: ServerAuthority
) -> None:
    with Receiver(tls=authority.server("hooks.example.com")) as receiver:
        assert post(trusting, receiver.url(host="hooks.example.com")).succeeded
    assert authority.asked_for == ["hooks.example.com"]
    assert receiver.requests[0].headers["host"] == f"hooks.example.com:{receiver.port}"


def test_an_address_needs_a_certificate_for_the_address(
    trusting: Outbound, authority: ServerAuthority
) -> None:
    with Receiver(tls=authority.server("127.0.0.1")) as receiver:
        assert post(trusting, receiver.url()).succeeded
    with Receiver(tls=authority.server("localhost")) as receiver:
        assert post(trusting, receiver.url()).failure is Failure.TLS


@pytest.mark.parametrize(
    ("name", "expired", "trusted", "why"),
    [
        ("other.example.com", False, True, "hooks.example.com"),
        ("hooks.example.com", True, True, "expired"),
        ("hooks.example.com", False, False, "self-signed"),
    ],
)
def test_a_bad_certificate_is_refused_before_a_byte_is_sent(
    trusting: Outbound,
    authority: ServerAuthority,
    name: str,
    expired: bool,
    trusted: bool,
    why: str,
) -> None:
    tls = authority.server(name, expired=expired, trusted=trusted)
    with Receiver(tls=tls) as receiver:
        answer = post(trusting, receiver.url(host="hooks.example.com"))
    assert answer.failure is Failure.TLS
    assert why in (answer.error or "")
    assert receiver.requests == []


def serving(key: PrivateKey, chain: Sequence[x509.Certificate], folder: Path) -> ssl.SSLContext:
    file = folder / "server.pem"
    pem = [certificate.public_bytes(Encoding.PEM) for certificate in chain]
    pem.append(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    file.write_bytes(b"".join(pem))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context


NAMED = (x509.SubjectAlternativeName([x509.DNSName("hooks.example.com")]), False)


@pytest.mark.parametrize(
    ("extensions", "failure"), [([NAMED], None), ([], Failure.TLS)], ids=["named", "only CN"]
)
def test_a_name_counts_in_the_subject_alternative_name_alone(
    tmp_path: Path, extensions: list[Extension], failure: Failure | None
) -> None:
    root_key, key = private_key(), private_key()
    # Without key identifiers and usages, as many a private authority: strict checks refuse these.
    root = issue("Old root", root_key, None, ROOT)
    leaf = issue("hooks.example.com", key, (root, root_key), extensions)
    pem = root.public_bytes(Encoding.PEM).decode()
    client = Outbound(LOOPBACK, authorities=pem, lookup=Names([HERE]))
    with Receiver(tls=serving(key, [leaf], tmp_path)) as receiver:
        answer = post(client, receiver.url(host="hooks.example.com"))
    client.close()
    assert answer.failure is failure
    assert len(receiver.requests) == (failure is None)


def test_an_intermediate_authority_may_be_the_one_to_trust(tmp_path: Path) -> None:
    root_key, middle_key, key = private_key(), private_key(), private_key()
    root = issue("Root", root_key, None, ROOT)
    middle = issue("Middle", middle_key, (root, root_key), ROOT)
    leaf = issue("x", key, (middle, middle_key), [NAMED])
    pem = middle.public_bytes(Encoding.PEM).decode()
    client = Outbound(LOOPBACK, authorities=pem, lookup=Names([HERE]))
    with Receiver(tls=serving(key, [leaf], tmp_path)) as receiver:
        assert post(client, receiver.url(host="hooks.example.com")).succeeded
    client.close()


def test_own_authorities_replace_the_public_authorities(
    authority: ServerAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "public").mkdir()
    public = ServerAuthority(tmp_path / "public")
    monkeypatch.setattr(certifi, "where", lambda: public.ca_file)
    pinned = Outbound(LOOPBACK, authorities=authority.pem, lookup=Names([HERE]))
    usual = Outbound(LOOPBACK, lookup=Names([HERE]))
    for client, trusted, refused in ((pinned, authority, public), (usual, public, authority)):
        with Receiver(tls=trusted.server("hooks.example.com")) as receiver:
            assert post(client, receiver.url(host="hooks.example.com")).succeeded
        with Receiver(tls=refused.server("hooks.example.com")) as receiver:
            answer = post(client, receiver.url(host="hooks.example.com"))
        assert answer.failure is Failure.TLS
        assert receiver.requests == []
        client.close()


def test_the_environment_cannot_add_roots(
    authority: ServerAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.setenv(name, authority.ca_file)
    client = Outbound(LOOPBACK, lookup=Names([HERE]))
    with Receiver(tls=authority.server("hooks.example.com")) as receiver:
        answer = post(client, receiver.url(host="hooks.example.com"))
    client.close()
    assert answer.failure is Failure.TLS


def test_a_server_without_tls_is_a_tls_failure(authority: ServerAuthority) -> None:
    client = Outbound(LOOPBACK, authorities=authority.pem)
    for words in (OK, b"", b"SSH-2.0-x\r\n", os.urandom(1000)):

        def speak(connection: socket.socket, words: bytes = words) -> None:
            connection.recv(1)
            connection.sendall(words)

        with Listener(speak) as listener:
            answer = post(client, f"https://127.0.0.1:{listener.port}/")
        assert answer.failure is Failure.TLS
    client.close()
