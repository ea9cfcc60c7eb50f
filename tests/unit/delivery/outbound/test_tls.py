"""Certificates of receivers: names, authorities, failures before a byte is sent."""

import os
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path

import certifi
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from app.lib.outbound.client import Outbound
from app.lib.outbound.failures import Failure
from tests.support.servers.certificates import (
    ROOT,
    Extension,
    PrivateKey,
    ServerAuthority,
    issue,
    private_key,
)
from tests.support.servers.receivers import LOOPBACK, OK, Listener, Receiver
from tests.unit.delivery.outbound.posting import HERE, Names, post


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
