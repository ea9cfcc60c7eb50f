"""Answers and rows that are no stamp: stored nowhere, passed over, replaced, no cover."""

import socket
from base64 import b64decode
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
import structlog
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID

from app.core.anchoring import checkpoint_round, evidence
from app.core.anchoring.evidence import Rank
from app.evidence.timestamps import read_certificates
from dev.tsa import KeyType, TimestampAuthority
from tests.support.evidence.anchoring import Place, put_stamp
from tests.support.servers.receivers import Listener, Receiver, Request, http_answer, read_request

_CLIENTS = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
Fault = Callable[[TimestampAuthority, bytes, bytes, Path], bytes]
OTHER = "leads to CN=Development TSA root"
NO_RESPONSE = "cannot be read as a response (RFC 3161)"


@pytest.fixture
def place(bare: Place) -> Place:
    """Return a service that has published a checkpoint of three leaves."""
    bare.grow(3)
    return bare


def _other_imprint(tsa: TimestampAuthority, query: bytes, note: bytes, _: Path) -> bytes:
    digest = sha256(note).digest()
    assert digest in query
    return tsa.reply(query.replace(digest, digest[:-1] + bytes([digest[-1] ^ 1])))


def _other_purpose(tsa: TimestampAuthority, query: bytes, note: bytes, _: Path) -> bytes:
    """Put a certificate for clients, of the same key and serial number, in the place of its own."""
    own = x509.load_pem_x509_certificate((tsa.folder / "tsa.pem").read_bytes())
    signer = load_pem_private_key((tsa.folder / "root.key").read_bytes(), None)
    builder = (
        x509.CertificateBuilder()
        .subject_name(own.subject)
        .issuer_name(own.issuer)
        .public_key(own.public_key())
        .serial_number(own.serial_number)
        .not_valid_before(own.not_valid_before_utc)
        .not_valid_after(own.not_valid_after_utc)
    )
    for each in own.extensions:
        is_purpose = isinstance(each.value, x509.ExtendedKeyUsage)
        builder = builder.add_extension(_CLIENTS if is_purpose else each.value, each.critical)
    twin = builder.sign(signer, hashes.SHA256())  # type: ignore[arg-type]
    before, after = (each.public_bytes(Encoding.DER) for each in (own, twin))
    reply = tsa.reply(query)
    assert before in reply
    assert len(before) == len(after)
    return reply.replace(before, after)


def _without_its_signer(tsa: TimestampAuthority, query: bytes, note: bytes, _: Path) -> bytes:
    """Put the certificate under another serial number: its own would name the signer."""
    own = x509.load_pem_x509_certificate((tsa.folder / "tsa.pem").read_bytes())
    before = own.public_bytes(Encoding.DER)
    number = own.serial_number.to_bytes(20, "big").lstrip(b"\0")
    assert before.count(number) == 1
    other = number[:-1] + bytes([number[-1] ^ 1])
    return tsa.reply(query).replace(before, before.replace(number, other))


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        # certReq, the last in a request, takes three bytes; the nonce is before it.
        (lambda tsa, q, *_: tsa.reply(q[:-4] + bytes([q[-4] ^ 1]) + q[-3:]), "nonce"),
        (_other_imprint, "other bytes"),
        (lambda _, q, __, folder: TimestampAuthority(folder / "x", KeyType.P256).reply(q), OTHER),
        (lambda *_: bytes.fromhex("30053003020102"), "rejection"),
        (_other_purpose, "holds"),
        (lambda tsa, q, *_: tsa.reply(q)[:-1], NO_RESPONSE),
        (lambda tsa, q, *_: tsa.reply(q) + b"\0", NO_RESPONSE),
        (lambda *_: b"<html>Sign in</html>", "it is a page"),
        (lambda *_: b"", "it is empty"),
        (lambda tsa, q, *_: tsa.reply(q) + bytes(10 << 20), "longer than 65536"),
    ],
)
def test_an_answer_that_is_not_what_was_asked_counts_for_nothing(
    place: Place, authority: TimestampAuthority, tmp_path: Path, fault: Fault, said: str
) -> None:
    note = place.world.published().note

    def answer(request: Request) -> bytes:
        return http_answer(200, fault(authority, request.body, note, tmp_path))

    with Receiver(answer) as receiver:
        place.stamped_by(receiver.url(), authority.ca_file)
        place.stamp()
    assert place.stamps() == []
    (job,) = place.jobs()
    place.overdue()
    (trouble,) = place.troubles()
    assert trouble.part == "timestamps"
    assert said in trouble.detail
    assert (job.status, job.error) == ("retrying", trouble.detail)


def test_an_answer_without_its_signer_s_certificate_counts_for_nothing(
    place: Place, authority: TimestampAuthority, tmp_path: Path
) -> None:
    """Also if we know that certificate: those who read the answer later do not."""
    known = tmp_path / "known.pem"
    own = (authority.folder / "tsa.pem").read_bytes()
    known.write_bytes(authority.ca_file.read_bytes() + own)

    def answer(request: Request) -> bytes:
        body = _without_its_signer(authority, request.body, b"", tmp_path)
        return http_answer(200, body)

    with Receiver(answer) as receiver:
        place.stamped_by(receiver.url(), known)
        place.stamp()
    place.overdue()
    (trouble,) = place.troubles()
    assert "does not include its signer's certificate" in trouble.detail


def _hang(connection: socket.socket) -> None:
    connection.recv(1 << 16)
    connection.recv(1 << 16)


def _drip_slowly(connection: socket.socket) -> None:
    with connection.makefile("rb") as stream:
        read_request(stream)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n")
        connection.settimeout(0.05)
        while True:
            connection.sendall(b"0")
            try:
                if not connection.recv(1):
                    return
            except TimeoutError:
                continue


@pytest.mark.parametrize("serve", [_hang, _drip_slowly])
def test_an_authority_that_takes_its_time_is_given_up(
    place: Place,
    authority: TimestampAuthority,
    monkeypatch: pytest.MonkeyPatch,
    serve: Callable[[socket.socket], None],
) -> None:
    monkeypatch.setattr(checkpoint_round, "DEADLINE_SECONDS", 0.3)
    with Listener(serve) as listener:
        place.stamped_by(listener.url(), authority.ca_file)
        place.stamp()
    place.overdue()
    (trouble,) = place.troubles()
    assert "time was up after 0.3 s" in trouble.detail


def test_a_row_that_is_no_stamp_of_its_checkpoint_is_no_evidence(
    place: Place, authority: TimestampAuthority, tmp_path: Path
) -> None:
    """Of other bytes, by another authority, under another root, or nothing at all."""
    tenant = place.tenant()
    place.anchor()
    place.set(tsa_ca_file=read_certificates(authority.ca_file.read_bytes()))
    place.publish()
    put_stamp(place.owner, authority, data=b"other bytes")
    another = TimestampAuthority(tmp_path / "another", KeyType.P256)
    place.grow()
    put_stamp(place.owner, another)
    place.grow()
    put_stamp(place.owner, authority)
    place.run(
        "UPDATE checkpoint_timestamps SET tsa_chain = :pem WHERE size = 6",
        pem=another.ca_file.read_text(),
    )
    place.grow()
    put_stamp(place.owner, authority)
    place.run("UPDATE checkpoint_timestamps SET response = '\\x00' WHERE size = 7")
    (anchor,) = place.anchors(tenant)
    assert (anchor["log_proof"]["tree_size"], anchor["timestamp"]) == (4, None)
    assert reached(place) == 0
    place.grow()
    response = put_stamp(place.owner, authority)
    assert reached(place) == 8
    place.grow()
    assert reached(place) == 8, "the newest that has one"
    put_stamp(place.owner, authority, data=b"other bytes")
    assert reached(place) == 8, "of those that hold"
    (anchor,) = place.anchors(tenant)
    assert anchor["log_proof"]["tree_size"] == 8
    assert b64decode(anchor["timestamp"]) == response


def reached(place: Place) -> int:
    """How many leaves are stamped, as readiness is told."""
    with place.database.across_tenants() as session:
        last, trusted = place.world.published(), place.runtime.settings.tsa_ca_file
        found = evidence.Chooser(session, last, None, trusted).reach()
        assert found.witnessed == evidence.Chooser(session, last, None).reach().stamped == 0
        return found.stamped


def test_a_row_that_is_no_stamp_of_its_checkpoint_is_replaced(
    place: Place, authority: TimestampAuthority
) -> None:
    place.set(tsa_ca_file=read_certificates(authority.ca_file.read_bytes()))
    put_stamp(place.owner, authority)
    place.run("UPDATE checkpoint_timestamps SET response = '\\x00'")
    with authority, structlog.testing.capture_logs() as lines:
        place.stamped_by(authority.url, authority.ca_file)
        place.stamp()
    assert reached(place) == 3
    (line,) = [each for each in lines if each["event"] == "timestamp_replaced"]
    assert (line["generation"], line["size"]) == (1, 3)
    assert place.troubles() == []


@pytest.mark.parametrize("junk", [1, 20])
def test_rows_that_are_no_stamps_do_not_hide_that_none_comes(
    place: Place, authority: TimestampAuthority, junk: int
) -> None:
    """However many: of twenty on the newest, not all are looked at."""
    with Receiver(http_answer(503)) as receiver:
        place.stamped_by(receiver.url(), authority.ca_file)
        put_stamp(place.owner, authority)
        for _ in range(20):
            place.grow()
        place.run(
            "INSERT INTO checkpoint_timestamps (generation, size, response, tsa_chain)"
            " SELECT generation, size, '\\x00', '' FROM checkpoints WHERE size > :beyond",
            beyond=23 - junk,
        )
        place.stamp()
        place.overdue()
    (trouble,) = place.troubles()
    assert "status 503" in trouble.detail
    first = 4 if junk == 1 else 23 - checkpoint_round.MOST_VERIFIED + 1
    assert trouble.since == place.published_at(first)


def test_a_stamp_without_a_root_to_trust_is_given_out_and_vouches_for_nothing(
    place: Place, authority: TimestampAuthority
) -> None:
    put_stamp(place.owner, authority)
    without = place.chosen(0)
    place.set(tsa_ca_file=read_certificates(authority.ca_file.read_bytes()))
    trusting = place.chosen(0)
    assert (without.rank, trusting.rank) == (Rank.LOG, Rank.TIMESTAMPED)
    assert without.timestamp == trusting.timestamp is not None


def test_nonsense_in_the_table_is_not_looked_at_without_an_end(
    place: Place, authority: TimestampAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "_MOST_REFUSED", 3)
    place.set(tsa_ca_file=read_certificates(authority.ca_file.read_bytes()))
    for _ in range(4):
        put_stamp(place.owner, authority, data=b"other bytes")
        place.grow()
    put_stamp(place.owner, authority)
    roots = place.runtime.settings.tsa_ca_file
    with place.database.across_tenants(snapshot=True) as session:
        chooser = evidence.Chooser(session, place.world.published(), None, roots)
        assert chooser.best(6).rank is Rank.TIMESTAMPED
        assert chooser.best(0).published.checkpoint.size == 7, "a later one that is known holds"
        another = evidence.Chooser(session, place.world.published(), None, roots)
        assert another.best(0).rank is Rank.LOG
