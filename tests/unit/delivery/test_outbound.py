"""The HTTP client against real receivers: kind ones, broken ones, and ones that mean harm."""

import contextlib
import gzip
import ipaddress
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import urllib3.util.connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.lib.outbound import dialing, resolver, transport
from app.lib.outbound.addresses import Address, RefusedAddress
from app.lib.outbound.attempt import Attempt, begin
from app.lib.outbound.client import Answer, Outbound
from app.lib.outbound.dialing import Dialer
from app.lib.outbound.failures import Failure
from app.lib.outbound.resolver import Resolver
from tests.support.faults import LONG_ENOUGH, until
from tests.support.servers.certificates import ServerAuthority
from tests.support.servers.receivers import LOOPBACK, OK, Listener, Receiver, Request, http_answer

BODY = b'{"id": "evt_1"}'
HEADERS = {"content-type": "application/json", "user-agent": "record-service/0.1.0"}
# Milliseconds do; then the rest of a deadline is spent on what never ends.
ENOUGH_TO_CONNECT = 1
HERE = ipaddress.ip_address("127.0.0.1")
ELSEWHERE = ipaddress.ip_address("127.0.0.2")
ONLY_HERE = [ipaddress.ip_network("127.0.0.1/32")]


class Names:
    """A resolver that answers what the test says and counts how often it is asked."""

    def __init__(self, *answers: Sequence[Address]) -> None:
        self.asked: list[str] = []
        self._answers = answers

    def __call__(self, host: str) -> Sequence[Address]:
        self.asked.append(host)
        return self._answers[min(len(self.asked), len(self._answers)) - 1]


@pytest.fixture
def outbound() -> Iterator[Outbound]:
    client = Outbound(LOOPBACK)
    yield client
    client.close()


@pytest.fixture
def authority(tmp_path: Path) -> ServerAuthority:
    return ServerAuthority(tmp_path)


def post(client: Outbound, url: str, *, seconds: float = 5.0) -> Answer:
    """Send, and hold the answer to what is promised of every answer."""
    started = time.monotonic()
    answer = client.send(url, BODY, HEADERS, deadline_seconds=seconds)
    # Milliseconds more. Whoever here never ends, or waits LONG_ENOUGH, is waited for without one.
    assert time.monotonic() - started < seconds + 10
    assert (answer.failure is None) == (answer.status is not None)
    if answer.error is not None:
        for python in ("Error", "Errno", "object at", "('", "None", "\n"):
            assert python not in answer.error
    return answer


# What is sent


def test_a_post_arrives_as_it_was_given(outbound: Outbound) -> None:
    with Receiver(http_answer(200, b"thanks", {"X-Seen": "yes"})) as receiver:
        answer = post(outbound, receiver.url("/hook/%41?x=1&y=%2F"))
    assert answer.succeeded
    assert (answer.status, answer.body, answer.failure, answer.error) == (
        200,
        b"thanks",
        None,
        None,
    )
    assert ("X-Seen", "yes") in answer.headers
    [request] = receiver.requests
    assert (request.method, request.path, request.body) == ("POST", "/hook/%41?x=1&y=%2F", BODY)
    assert request.headers == {
        "host": f"127.0.0.1:{receiver.port}",
        "accept-encoding": "identity",
        "content-length": str(len(BODY)),
        **HEADERS,
    }


def test_head_and_body_arrive_in_one_piece(outbound: Outbound) -> None:
    pieces: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        pieces.append(connection.recv(65536))
        connection.sendall(OK)

    with Listener(serve) as listener:
        assert post(outbound, listener.url()).succeeded
    assert pieces[0].endswith(BODY)


@pytest.mark.parametrize("value", ["a\r\nx-forged: yes", "a\nx-forged: yes", "a\rb"])
def test_a_header_with_a_line_break_is_not_sent(outbound: Outbound, value: str) -> None:
    with Receiver() as receiver:
        answer = outbound.send(receiver.url(), BODY, {**HEADERS, "x-value": value})
    assert not answer.succeeded
    assert receiver.requests == []


def test_an_empty_and_a_large_body_arrive(outbound: Outbound) -> None:
    with Receiver() as receiver:
        for body in (b"", b"x" * 300_000):
            assert outbound.send(receiver.url(), body, HEADERS).succeeded
    assert [len(request.body) for request in receiver.requests] == [0, 300_000]


def test_the_timings_say_what_happened(authority: ServerAuthority) -> None:
    client = Outbound(LOOPBACK, authorities=authority.pem, lookup=Names([HERE]))
    with Receiver(tls=authority.server("hooks.example.com")) as receiver:
        first = post(client, receiver.url(host="hooks.example.com")).timings
        second = post(client, receiver.url(host="hooks.example.com")).timings
    client.close()
    parts = (first.dns, first.connect, first.tls, first.first_byte)
    assert all(part is not None and 0 <= part <= first.total for part in parts)
    assert (second.dns, second.connect, second.tls) == (None, None, None)
    assert second.first_byte is not None
    assert second.first_byte <= second.total


# Where it goes

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
    begin(Attempt(time.monotonic(), 5))
    with Receiver() as receiver, pytest.raises(RefusedAddress):
        Dialer(Resolver(), ()).open(host, receiver.port, encrypted=True)
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
        raise AssertionError("urllib3 opened a connection by itself")

    monkeypatch.setattr(urllib3.util.connection, "create_connection", gone_round)
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


# TLS


def test_a_certificate_for_the_name_is_accepted_and_the_name_is_asked_for(
    authority: ServerAuthority,
) -> None:
    client = Outbound(LOOPBACK, authorities=authority.pem, lookup=Names([HERE]))
    with Receiver(tls=authority.server("hooks.example.com")) as receiver:
        assert post(client, receiver.url(host="hooks.example.com")).succeeded
    client.close()
    assert authority.asked_for == ["hooks.example.com"]
    assert receiver.requests[0].headers["host"] == f"hooks.example.com:{receiver.port}"


def test_an_address_needs_a_certificate_for_the_address(authority: ServerAuthority) -> None:
    client = Outbound(LOOPBACK, authorities=authority.pem)
    with Receiver(tls=authority.server("127.0.0.1")) as receiver:
        assert post(client, receiver.url()).succeeded
    with Receiver(tls=authority.server("localhost")) as receiver:
        assert post(client, receiver.url()).failure is Failure.TLS
    client.close()


@pytest.mark.parametrize(
    ("name", "expired", "trusted", "why"),
    [
        ("other.example.com", False, True, "hooks.example.com"),
        ("hooks.example.com", True, True, "expired"),
        ("hooks.example.com", False, False, "self-signed"),
    ],
)
def test_a_bad_certificate_is_refused_before_a_byte_is_sent(
    authority: ServerAuthority, name: str, expired: bool, trusted: bool, why: str
) -> None:
    client = Outbound(LOOPBACK, authorities=authority.pem, lookup=Names([HERE]))
    tls = authority.server(name, expired=expired, trusted=trusted)
    with Receiver(tls=tls) as receiver:
        answer = post(client, receiver.url(host="hooks.example.com"))
    client.close()
    assert answer.failure is Failure.TLS
    assert why in (answer.error or "")
    assert receiver.requests == []


def test_own_authorities_replace_the_public_authorities(
    authority: ServerAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "public").mkdir()
    public = ServerAuthority(tmp_path / "public")
    monkeypatch.setattr("app.lib.outbound.deadline_sockets.DEFAULT_CA_BUNDLE_PATH", public.ca_file)
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


# The deadline


def drip(start: bytes, piece: bytes) -> Callable[[socket.socket], None]:
    """Answer `start`, and then `piece` every 20 ms for ever."""

    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(start)
        while True:
            connection.sendall(piece)
            time.sleep(0.02)

    return serve


def silent(connection: socket.socket) -> None:
    """Read nothing, say nothing, until the client goes away."""
    connection.recv(1, socket.MSG_PEEK)
    until(lambda: not connection.recv(1))


NEVER_ENDING_HEADS = {
    "a silent server": b"",
    "a dripped status line": b"H",
    "dripped headers": b"x",
    "dripped interim answers": b"HTTP/1.1 100 Continue\r\n\r\n",
    "dripped early hints": b"HTTP/1.1 103 Early Hints\r\n\r\n",
}


@pytest.mark.parametrize("piece", NEVER_ENDING_HEADS.values(), ids=NEVER_ENDING_HEADS.keys())
def test_a_head_that_never_ends_ends_at_the_deadline(outbound: Outbound, piece: bytes) -> None:
    start = b"HTTP/1.1 200 OK\r\nX: " if piece == b"x" else b""
    with Listener(drip(start, piece)) as listener:
        answer = post(outbound, listener.url(), seconds=ENOUGH_TO_CONNECT)
    assert answer.failure is Failure.TIMEOUT
    assert answer.error == "the time was up after 1 s, while waiting for the answer"


@pytest.mark.parametrize(
    "head",
    [b"Content-Length: 99999", b"Transfer-Encoding: chunked", b"Connection: close"],
    ids=["length", "chunked", "until closed"],
)
def test_a_dripped_body_ends_at_the_deadline_and_the_status_stands(
    outbound: Outbound, head: bytes
) -> None:
    piece = b"1\r\nx\r\n" if b"chunked" in head else b"x"
    begun = b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n" + 3 * piece
    with Listener(drip(begun, piece)) as listener:
        answer = post(outbound, listener.url(), seconds=ENOUGH_TO_CONNECT)
    assert answer.succeeded
    assert answer.body.startswith(b"xxx")
    assert answer.error == "the time was up after 1 s, while reading the answer"


def test_a_handshake_that_never_ends_ends_at_the_deadline(outbound: Outbound) -> None:
    for serve in (silent, drip(b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc\x03\x03", b"x")):
        with Listener(serve) as listener:
            url = f"https://127.0.0.1:{listener.port}/"
            answer = post(outbound, url, seconds=ENOUGH_TO_CONNECT)
        assert answer.failure is Failure.TIMEOUT
        assert "TLS" in (answer.error or "")


def test_an_answer_dripped_under_tls_ends_at_the_deadline(authority: ServerAuthority) -> None:
    client = Outbound(LOOPBACK, authorities=authority.pem)
    tls = authority.server("127.0.0.1")
    with Listener(drip(b"HTTP/1.1 200 OK\r\nX: ", b"x"), tls=tls) as listener:
        answer = post(client, listener.url(), seconds=0.4)
    client.close()
    assert answer.failure is Failure.TIMEOUT


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_receiver_that_never_reads_is_left_at_the_deadline(
    authority: ServerAuthority, scheme: str
) -> None:
    client = Outbound(LOOPBACK, authorities=authority.pem)
    over = threading.Event()
    tls = authority.server("127.0.0.1") if scheme == "https" else None

    def serve(connection: socket.socket) -> None:
        over.wait(LONG_ENOUGH)

    with Listener(serve, tls=tls) as listener:
        # With TLS the handshake comes first.
        answer = client.send(listener.url(), b"x" * 50_000_000, HEADERS, deadline_seconds=3)
        over.set()
    client.close()
    assert answer.failure is Failure.TIMEOUT
    assert "sending" in (answer.error or "")


@contextlib.contextmanager
def full_port() -> Iterator[int]:
    """Yield a port that answers no more connection attempts: its queue is full."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.settimeout(0)
            waiting.connect_ex(server.getsockname())
        yield server.getsockname()[1]


def test_a_connect_that_hangs_ends_at_the_deadline(outbound: Outbound) -> None:
    with full_port() as port:
        answer = post(outbound, f"http://127.0.0.1:{port}/", seconds=ENOUGH_TO_CONNECT)
    assert answer.failure is Failure.TIMEOUT
    assert "connecting" in (answer.error or "")


def test_connecting_has_a_limit_of_its_own_for_all_addresses_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dialing, "CONNECT_SECONDS", 0.3)
    client = Outbound(LOOPBACK, lookup=Names([HERE] * 50))
    with full_port() as port:
        answer = post(client, f"http://hooks.example.com:{port}/")
    # Fifty limits of their own would go beyond the deadline: a timeout.
    assert answer.failure is Failure.CONNECT


def lookups() -> int:
    """Count the threads that resolve a name."""
    return sum(thread.name.startswith("resolve ") for thread in threading.enumerate())


def test_a_name_that_hangs_ends_at_the_deadline_and_holds_one_thread() -> None:
    over = threading.Event()

    def hang(host: str) -> list[Address]:
        over.wait(LONG_ENOUGH)
        return [HERE]

    client = Outbound(LOOPBACK, lookup=hang)
    for _ in range(4):
        answer = post(client, "http://hooks.example.com/", seconds=0.1)
        assert answer.failure is Failure.TIMEOUT
        assert "resolving" in (answer.error or "")
    assert lookups() == 1
    over.set()
    until(lambda: lookups() == 0)


def test_names_that_hang_leave_a_bounded_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver, "MAX_LOOKUPS", 2)
    over = threading.Event()

    def hang(host: str) -> list[Address]:
        over.wait(LONG_ENOUGH)
        return [HERE]

    client = Outbound(LOOPBACK, lookup=hang)
    # Only those that hang get a deadline that passes: the others are refused without waiting.
    asked = {"a": 0.1, "b": 0.1, "c": LONG_ENOUGH, "d": LONG_ENOUGH}
    failures = [
        post(client, f"http://{name}.example.com/", seconds=seconds).failure
        for name, seconds in asked.items()
    ]
    assert failures == [Failure.TIMEOUT, Failure.TIMEOUT, Failure.DNS, Failure.DNS]
    assert lookups() == 2
    over.set()
    until(lambda: lookups() == 0)


# Broken answers

NOT_HTTP = {
    "nonsense": b"hello there\r\n\r\n",
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n",
    "no status": b"HTTP/1.1\r\n\r\n",
    "status in words": b"HTTP/1.1 OK 200\r\n\r\n",
    "status of two digits": b"HTTP/1.1 20 OK\r\n\r\n",
    "negative status": b"HTTP/1.1 -200 OK\r\n\r\n",
    "unknown version": b"HTTP/3.7 200 OK\r\n\r\n",
    "a line without end": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000,
    "a status line without end": b"HTTP/1.1 200 " + b"x" * 70_000,
    "101 headers": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 101 + b"\r\n",
    "headers of 100 KiB": b"HTTP/1.1 200 OK\r\n" + (b"X: " + b"y" * 2000 + b"\r\n") * 50 + b"\r\n",
    "interim answers without end": b"HTTP/1.1 100 Continue\r\n\r\n" * 5000,
    "differing lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1, 2\r\n\r\nxx",
}


@pytest.mark.parametrize("words", NOT_HTTP.values(), ids=NOT_HTTP.keys())
def test_what_is_not_http_is_a_failure_in_plain_words(outbound: Outbound, words: bytes) -> None:
    with Receiver(words) as receiver:
        answer = post(outbound, receiver.url())
    assert answer.failure is Failure.PROTOCOL
    assert answer.body == b""


def test_a_connection_that_closes_or_resets_is_a_failure(outbound: Outbound) -> None:
    def reset(connection: socket.socket) -> None:
        connection.recv(1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def close_halfway(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-")

    for serve in (reset, lambda connection: None, close_halfway):
        with Listener(serve) as listener:
            answer = post(outbound, listener.url())
        assert answer.failure is Failure.RESET
        assert listener.connections == 1


def test_nobody_listening_is_a_connect_failure(outbound: Outbound) -> None:
    with Receiver() as receiver:
        pass
    answer = post(outbound, receiver.url())
    assert answer.failure is Failure.CONNECT
    assert answer.error == "could not connect: connection refused"


@pytest.mark.parametrize(
    ("code", "words"),
    [(socket.EAI_NONAME, "does not resolve"), (socket.EAI_AGAIN, "name servers did not answer")],
)
def test_a_name_that_does_not_resolve_is_a_dns_failure(code: int, words: str) -> None:
    def fail(host: str) -> list[Address]:
        raise socket.gaierror(code, "in the system's words")

    answer = post(Outbound(lookup=fail), "https://hooks.example.com/")
    assert answer.failure is Failure.DNS
    assert words in (answer.error or "")


def test_a_name_without_addresses_is_refused() -> None:
    answer = post(Outbound(lookup=Names([])), "https://hooks.example.com/")
    assert answer.failure is Failure.REFUSED_ADDRESS


def test_a_body_that_breaks_off_leaves_the_status(outbound: Outbound) -> None:
    for head in (b"Content-Length: 10", b"Transfer-Encoding: chunked"):
        words = b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n5\r\nab"

        def serve(connection: socket.socket, words: bytes = words) -> None:
            connection.recv(65536)
            connection.sendall(words)

        with Listener(serve) as listener:
            answer = post(outbound, listener.url())
        assert answer.succeeded
        assert answer.error is not None


# Kind answers


def test_interim_answers_are_skipped_and_the_final_one_is_taken(outbound: Outbound) -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    words = b"HTTP/1.1 100 Continue\r\n\r\n" + early + early + http_answer(201, b"made")
    with Receiver(words) as receiver:
        for _ in range(2):
            answer = post(outbound, receiver.url())
            assert (answer.status, answer.body) == (201, b"made")
    assert receiver.connections == 1


def test_what_follows_a_switch_of_protocols_is_not_read_as_http(outbound: Outbound) -> None:
    words = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n" + http_answer(200, b"later")
    with Receiver(words) as receiver:
        for _ in range(2):
            answer = post(outbound, receiver.url())
            assert (answer.status, answer.body, answer.succeeded) == (101, b"", False)
    assert receiver.connections == 2


def test_http_1_0_and_chunks_and_empty_answers_are_read(outbound: Outbound) -> None:
    chunks = b"3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nT: x\r\n\r\n"
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks
    for words, body, connections in (
        (b"HTTP/1.0 200 OK\r\n\r\nabcde", b"abcde", 2),
        (b"HTTP/1.1 200 OK\r\n\r\nabcde", b"abcde", 2),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\na", b"a", 1),
        (chunked, b"abcde", 1),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"", 1),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", b"", 1),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\na", b"a", 2),
    ):

        def serve(connection: socket.socket, words: bytes = words) -> None:
            while connection.recv(65536):
                connection.sendall(words)
                if b"ength" not in words and b"chunked" not in words and b"204" not in words:
                    return

        with Listener(serve) as listener:
            for _ in range(2):
                answer = post(outbound, listener.url())
                assert (answer.body, answer.error) == (body, None)
        assert listener.connections == connections, words


def test_nothing_is_decompressed(outbound: Outbound) -> None:
    bomb = gzip.compress(b"\x00" * 30_000_000)
    for encoding in ("gzip", "deflate", "br", "x-unknown", "gzip, gzip"):
        with Receiver(http_answer(200, bomb, {"Content-Encoding": encoding})) as receiver:
            answer = post(outbound, receiver.url())
        assert answer.body == bomb[:4096]


@pytest.mark.parametrize(
    "head", [b"Content-Length: 1000000000", b"Transfer-Encoding: chunked", b"X: y"]
)
def test_an_endless_body_is_left_after_64_kib(outbound: Outbound, head: bytes) -> None:
    sent = 0

    def serve(connection: socket.socket) -> None:
        nonlocal sent
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n")
        piece = b"1000\r\n" + b"x" * 4096 + b"\r\n" if b"chunked" in head else b"x" * 4096
        while True:
            connection.sendall(piece)
            sent += len(piece)

    with Listener(serve) as listener:
        answer = post(outbound, listener.url(), seconds=LONG_ENOUGH)
        assert answer.succeeded
        assert answer.body == b"x" * 4096
        assert answer.error is None
    assert sent < 20_000_000


def test_endless_trailers_are_left_after_64_kib(outbound: Outbound) -> None:
    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n")
        while True:
            connection.sendall(b"X: y\r\n" * 100)

    with Listener(serve) as listener:
        answer = post(outbound, listener.url(), seconds=LONG_ENOUGH)
    # Left before the deadline, which would be told.
    assert (answer.succeeded, answer.error) == (True, None)


@pytest.mark.parametrize(("size", "connections"), [(65_536, 1), (70_000, 2), (200_000, 2)])
def test_a_connection_is_kept_only_when_the_answer_was_read_whole(
    outbound: Outbound, size: int, connections: int
) -> None:
    with Receiver(http_answer(200, b"x" * size)) as receiver:
        for _ in range(2):
            answer = post(outbound, receiver.url())
            assert (answer.succeeded, len(answer.body)) == (True, 4096)
    assert receiver.connections == connections


def test_headers_are_kept_within_bounds_and_without_control_characters(outbound: Outbound) -> None:
    words = (
        b"HTTP/1.1 429 Slow\r\nX-Long: " + b"x" * 9000 + b"\r\nX-Null: a\x00b\x1bc\r\n"
        b"X-Folded: a\r\n b\r\nX-Twice: 1\r\nX-Twice: 2\r\nX-Latin: \xfc\r\n"
        b"Retry-After: 120\r\nContent-Length: 0\r\n\r\n"
    )
    with Receiver(words) as receiver:
        answer = post(outbound, receiver.url())
    assert answer.retry_after == "120"
    names = [name for name, _ in answer.headers]
    assert "X-Long" not in names
    assert names.count("X-Twice") == 2
    kept = dict(answer.headers)
    assert (kept["X-Null"], kept["X-Latin"]) == ("a b c", "ü")
    assert not any(ord(c) < 32 for name, value in answer.headers for c in name + value)


def test_an_endless_retry_after_is_cut(outbound: Outbound) -> None:
    with Receiver(http_answer(503, headers={"Retry-After": "9" * 5000})) as receiver:
        answer = post(outbound, receiver.url())
    assert answer.retry_after == "9" * 64


@settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    status=st.binary(max_size=20),
    headers=st.lists(st.tuples(st.binary(max_size=12), st.binary(max_size=12)), max_size=5),
    name=st.sampled_from([b"Content-Length", b"Transfer-Encoding", b"Content-Type", b"Connection"]),
    value=st.one_of(
        st.binary(max_size=30),
        st.sampled_from([b"chunked", b"-1", b"9" * 5000, b"1_0", b"multipart/mixed; boundary=x"]),
    ),
    body=st.binary(max_size=60),
)
def test_no_answer_makes_it_raise(
    outbound: Outbound,
    status: bytes,
    headers: list[tuple[bytes, bytes]],
    name: bytes,
    value: bytes,
    body: bytes,
) -> None:
    lines = [
        b"HTTP/1.1 200 " + status,
        *(b": ".join(pair) for pair in headers),
        name + b": " + value,
    ]
    words = b"\r\n".join([*lines, b"", body])

    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(words)

    with Listener(serve) as listener:
        assert post(outbound, listener.url()) is not None


# Connections


def test_connections_are_kept_alive(outbound: Outbound) -> None:
    with Receiver() as receiver:
        for _ in range(5):
            assert post(outbound, receiver.url()).succeeded
    assert receiver.connections == 1


def test_an_old_connection_is_not_used_again(
    outbound: Outbound, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "MAX_CONNECTION_SECONDS", 0.0)
    with Receiver() as receiver:
        for _ in range(3):
            assert post(outbound, receiver.url()).succeeded
    assert receiver.connections == 3


def test_a_connection_that_was_closed_meanwhile_is_replaced_silently(outbound: Outbound) -> None:
    with Receiver() as receiver:
        assert post(outbound, receiver.url()).succeeded
        receiver.cut()
        answer = post(outbound, receiver.url())
    assert answer.succeeded
    assert receiver.connections == 2


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_kept_connection_that_dies_without_a_byte_is_tried_once_anew(
    authority: ServerAuthority, scheme: str
) -> None:
    client = Outbound(LOOPBACK, authorities=authority.pem)
    tls = authority.server("127.0.0.1") if scheme == "https" else None
    answers = iter([OK, OK, None, OK, None, None])
    with Receiver(lambda _: next(answers), tls=tls) as receiver:
        sent = [post(client, receiver.url()) for _ in range(4)]
    client.close()
    assert [answer.succeeded for answer in sent] == [True, True, True, False]
    assert [answer.reconnected for answer in sent] == [False, False, True, True]
    assert sent[3].failure is Failure.RESET
    assert receiver.connections == 3


def test_a_new_connection_that_dies_is_not_tried_again(outbound: Outbound) -> None:
    with Receiver(lambda _: None) as receiver:
        answer = post(outbound, receiver.url())
    assert (answer.failure, answer.reconnected) == (Failure.RESET, False)
    assert len(receiver.requests) == 1


def test_a_kept_connection_that_dies_halfway_or_hangs_is_not_tried_again(
    outbound: Outbound,
) -> None:
    def answer(words: bytes) -> Callable[[Request], bytes]:
        answers = iter([OK, words])
        return lambda _: next(answers)

    for words in (b"H", b"HTTP/1.1 200 OK\r\nX"):
        with Receiver(answer(words)) as receiver:
            assert post(outbound, receiver.url()).succeeded
            broken = post(outbound, receiver.url(), seconds=ENOUGH_TO_CONNECT)
        assert broken.failure is Failure.TIMEOUT
        assert len(receiver.requests) == 2


def test_bytes_that_nobody_asked_for_are_not_taken_for_the_next_answer(outbound: Outbound) -> None:
    with Receiver(OK + http_answer(500, b"planted")) as receiver:
        for _ in range(3):
            assert post(outbound, receiver.url()).status == 200


def test_many_threads_each_get_their_own_answer(outbound: Outbound) -> None:
    wrong: list[str] = []

    def run(receiver: Receiver, number: int) -> None:
        for turn in range(10):
            text = f"{number}.{turn}".encode()
            answer = outbound.send(receiver.url(), text, HEADERS)
            if answer.body != text:
                wrong.append(f"{text!r}: {answer}")

    with Receiver(lambda request: http_answer(200, request.body)) as receiver:
        threads = [threading.Thread(target=run, args=(receiver, n)) for n in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_thousand_failures_leave_no_file_and_no_thread() -> None:
    def fail(host: str) -> list[Address]:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    nameless = Outbound(LOOPBACK, lookup=fail)
    client = Outbound(LOOPBACK)

    def speak_nonsense(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"nonsense\r\n\r\n")

    with (
        socket.socket() as closed,
        Receiver(lambda _: None) as mute,
        Listener(speak_nonsense) as broken,
    ):
        # Bound and not listening, so nobody else listens there either.
        closed.bind(("127.0.0.1", 0))
        refused = f"http://127.0.0.1:{closed.getsockname()[1]}/"
        urls = [refused, mute.url(), broken.url(), f"https://127.0.0.1:{broken.port}/"]
        for url in urls:
            assert post(client, url).failure
        until(lambda: open_files() < 200)
        files, threads = open_files(), threading.active_count()
        for _ in range(250):
            for url in urls:
                assert client.send(url, BODY, HEADERS).failure
            assert nameless.send("http://hooks.example.com/", BODY, HEADERS).failure is Failure.DNS
        until(lambda: threading.active_count() <= threads)
        until(lambda: open_files() <= files)
    client.close()


def test_connections_to_many_receivers_are_bounded() -> None:
    client = Outbound(LOOPBACK, lookup=Names([HERE]))
    with Receiver() as receiver:
        before = open_files()
        for number in range(300):
            assert post(client, receiver.url(host=f"h{number}.example.com")).succeeded
        # Each connection has two ends in this process.
        until(lambda: open_files() - before <= 2 * transport.MAX_RECEIVERS + 4)
        client.close()
        until(lambda: open_files() <= before + 4)


# Being slow


def test_the_alarm_is_raised_once_for_a_slow_post_and_never_for_a_quick_one(
    outbound: Outbound,
) -> None:
    slow: list[str] = []
    over = threading.Event()

    def answer(request: Request) -> bytes:
        if request.path == "/slow":
            over.wait(LONG_ENOUGH)
        return OK

    def send(path: str, receiver: Receiver) -> None:
        outbound.send(
            receiver.url(path), BODY, HEADERS, on_slow=lambda: slow.append(path), slow_after=1
        )

    with Receiver(answer) as receiver:
        for _ in range(20):
            send("/quick", receiver)
        out = threading.Thread(target=send, args=("/slow", receiver))
        out.start()
        # By then those of the quick ones would have been raised as well.
        until(lambda: slow)
        over.set()
        out.join()
    assert slow == ["/slow"]


def test_an_alarm_that_fails_is_logged_and_the_next_still_comes(
    outbound: Outbound, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[int] = []

    def alarm() -> None:
        called.append(1)
        raise ValueError("of the test")

    def answer(_: Request) -> bytes:
        already = len(receiver.requests) - 1
        until(lambda: len(called) > already)
        return OK

    with Receiver(answer) as receiver:
        for _ in range(2):
            sent = outbound.send(
                receiver.url(),
                BODY,
                HEADERS,
                deadline_seconds=LONG_ENOUGH,
                on_slow=alarm,
                slow_after=0.05,
            )
            assert sent.succeeded
    assert len(called) == 2
    until(lambda: "An alarm failed." in caplog.text)


def test_nothing_of_a_url_or_an_answer_is_logged(
    outbound: Outbound, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nbad header secret\r\nX: y\r\n\r\nsecret")

    with Listener(serve) as listener:
        for path in ("/secret", "/?token=secret"):
            assert post(outbound, listener.url(path)).succeeded
        post(outbound, "https://127.0.0.1:1/secret")
    assert "secret" not in caplog.text
