"""Certificates of receivers: names, authorities, failures before a byte is sent."""

import os
import socket
from pathlib import Path

import pytest

from app.lib.outbound.client import Outbound
from app.lib.outbound.failures import Failure
from tests.support.servers.certificates import ServerAuthority
from tests.support.servers.receivers import LOOPBACK, OK, Listener, Receiver
from tests.unit.delivery.outbound.posting import HERE, Names, post


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
