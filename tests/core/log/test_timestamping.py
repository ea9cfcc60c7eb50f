"""Checkpoints and the timestamp authority: what is stored, and every way in which it fails."""

import socket
import subprocess
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import structlog
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID
from rfc3161_client import decode_timestamp_response
from sqlalchemy import Engine, text

from app import ids
from app.core.anchoring import checkpoint_round, evidence, evidence_search, external_post
from app.core.anchoring.evidence import Rank
from app.core.anchoring.timestamping import Stamper
from app.core.jobs.steps import Errand, Step
from app.dev.tsa import KeyType, TimestampAuthority
from app.evidence import verify
from app.ledger.notes import Note
from app.lib.crypto import timestamps
from app.lib.crypto.timestamps import NotStamped, Stamp, read_certificates
from app.models import NO_TENANT, Job
from jobs.process.runtime import Runtime
from tests.support.evidence.anchoring import Place, new_place, put_stamp
from tests.support.servers.receivers import Listener, Receiver, Request, http_answer, read_request


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> TimestampAuthority:
    return TimestampAuthority(tmp_path_factory.mktemp("tsa"))


@pytest.fixture
def bare(log_runtime: Runtime, log_owner: Engine, tmp_path: Path) -> Iterator[Place]:
    with new_place(log_runtime, log_owner, tmp_path) as made:
        yield made


@pytest.fixture
def place(bare: Place) -> Place:
    bare.grow(3)
    return bare


def stored(place: Place) -> list[Any]:
    with place.owner.connect() as connection:
        query = "SELECT * FROM checkpoint_timestamps ORDER BY generation, size"
        return list(connection.execute(text(query)).all())


def openssl_agrees(folder: Path, note: bytes, response: bytes, chain: str) -> bool:
    """Ask the program that auditors have."""
    files = {"checkpoint": note, "checkpoint.tsr": response, "tsa-chain.pem": chain.encode()}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    command = ["openssl", "ts", "-verify", "-data", "checkpoint", "-in", "checkpoint.tsr"]
    said = subprocess.run(
        [*command, "-CAfile", "tsa-chain.pem"],
        cwd=folder,
        capture_output=True,
        check=False,
    )
    return said.returncode == 0


@pytest.mark.parametrize("key_type", list(KeyType))
def test_the_newest_checkpoint_is_stamped_as_it_is_published(
    place: Place, tmp_path: Path, key_type: KeyType
) -> None:
    with TimestampAuthority(tmp_path / "tsa", key_type) as authority:
        place.stamped_by(authority.url, authority.ca_file)
        place.stamp()
    (row,) = stored(place)
    last = place.world.published()
    assert row.size == last.checkpoint.size == 3
    assert openssl_agrees(tmp_path, last.note, row.response, row.tsa_chain)
    assert not openssl_agrees(tmp_path, last.note + b"\n", row.response, row.tsa_chain)
    assert place.troubles() == []


@pytest.mark.parametrize("key_type", list(KeyType))
def test_an_answer_that_includes_the_root_is_kept_as_it_came(
    place: Place, tmp_path: Path, key_type: KeyType
) -> None:
    """OpenSSL leaves certificates in another order than DER asks of a set; BER is what is asked."""
    tenant = place.tenant()
    place.anchor()
    place.publish()
    authority = TimestampAuthority(tmp_path / "tsa", key_type, sends_root=True)
    answers: list[bytes] = []

    def answer(request: Request) -> bytes:
        answers.append(authority.reply(request.body))
        return http_answer(200, answers[-1])

    with Receiver(answer) as receiver:
        place.stamped_by(receiver.url(), authority.ca_file)
        place.stamp()
    with pytest.raises(ValueError, match="InvalidSetOrdering"):
        decode_timestamp_response(answers[0])
    assert place.troubles() == []
    (row,) = stored(place)
    assert row.response == answers[0]
    assert row.tsa_chain == authority.ca_file.read_text()
    note = place.world.published().note
    assert openssl_agrees(tmp_path, note, row.response, row.tsa_chain)
    (anchor,) = place.anchors(tenant)
    assert b64decode(anchor["timestamp"]) == answers[0]


def test_a_grant_with_modifications_is_a_grant(place: Place, authority: TimestampAuthority) -> None:
    """RFC 3161 section 2.4.2: with it comes a token, and that is held to all that was asked."""
    tenant = place.tenant()
    place.anchor()
    place.publish()
    modified = bytes.fromhex("3003020101")

    def answer(request: Request) -> bytes:
        granted, reply = bytes.fromhex("3003020100"), authority.reply(request.body)
        assert reply.count(granted) == 1
        return http_answer(200, reply.replace(granted, modified))

    with Receiver(answer) as receiver:
        place.stamped_by(receiver.url(), authority.ca_file)
        place.stamp()
    assert place.troubles() == []
    (row,) = stored(place)
    assert modified in row.response, "as it came"
    (anchor,) = place.anchors(tenant)
    assert b64decode(anchor["timestamp"]) == row.response
    note = place.world.published().note
    said = verify.check_timestamp(row.response, note, row.tsa_chain.encode(), None)
    assert datetime.fromisoformat(said) == row.gen_time, "verify.py decides alike"


def test_a_checkpoint_is_stamped_once(place: Place, authority: TimestampAuthority) -> None:
    with Receiver(lambda request: http_answer(200, authority.reply(request.body))) as receiver:
        place.stamped_by(receiver.url(), authority.ca_file)
        place.stamp()
        place.stamp()
        assert len(receiver.requests) == 1
        assert receiver.requests[0].headers["content-type"] == "application/timestamp-query"
        place.grow()
        place.stamp()
        assert [row.size for row in stored(place)] == [3, 4]
        assert len(place.jobs()) == 1


def test_nothing_is_stamped_without_an_authority_or_of_an_empty_log(
    bare: Place, authority: TimestampAuthority
) -> None:
    with Receiver() as receiver:
        bare.stamped_by(receiver.url(), authority.ca_file)
        bare.stamp()
        assert bare.publish() == 0
        bare.stamp()
        assert receiver.requests == []
    bare.set(tsa_url=None)
    bare.grow()
    bare.stamp()
    assert bare.jobs() == []


def test_an_anchor_shows_its_timestamp_and_the_proof_is_of_the_checkpoint_that_is_stamped(
    place: Place, authority: TimestampAuthority
) -> None:
    tenant = place.tenant()
    place.anchor()
    place.publish()
    place.grow()
    assert place.anchors(tenant)[0]["timestamp"] is None
    with authority:
        place.stamped_by(authority.url, authority.ca_file)
        place.stamp()
        place.grow()
        place.stamp()
    (anchor,) = place.anchors(tenant)
    assert anchor["log_proof"]["tree_size"] == 5, "the earliest that is stamped"
    assert anchor["timestamp"] is not None
    assert anchor["tsa_chain"] == authority.ca_file.read_text()


# What an authority may do wrong

# Nobody listens on this port, and no ordinary user may.
NOBODY = "http://127.0.0.1:1/"


_CLIENTS = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
Fault = Callable[[TimestampAuthority, bytes, bytes, Path], bytes | None]


def _other_nonce(tsa: TimestampAuthority, query: bytes, note: bytes, _: Path) -> bytes:
    # certReq, the last in a request, takes three bytes.
    return tsa.reply(query[:-4] + bytes([query[-4] ^ 1]) + query[-3:])


def _other_imprint(tsa: TimestampAuthority, query: bytes, note: bytes, _: Path) -> bytes:
    digest = sha256(note).digest()
    assert digest in query
    return tsa.reply(query.replace(digest, digest[:-1] + bytes([digest[-1] ^ 1])))


def _of_another(tsa: TimestampAuthority, query: bytes, note: bytes, folder: Path) -> bytes:
    return TimestampAuthority(folder / "another", KeyType.P256).reply(query)


def _rejection(tsa: TimestampAuthority, query: bytes, note: bytes, _: Path) -> bytes:
    return bytes.fromhex("30053003020102")


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
    """Put the certificate under another serial number: whoever knows its own finds the signer."""
    own = x509.load_pem_x509_certificate((tsa.folder / "tsa.pem").read_bytes())
    before = own.public_bytes(Encoding.DER)
    number = own.serial_number.to_bytes(20, "big").lstrip(b"\0")
    assert before.count(number) == 1
    return tsa.reply(query).replace(before, before.replace(number, number[:-1] + b"\x01"))


def _cut(tsa: TimestampAuthority, query: bytes, note: bytes, _: Path) -> bytes:
    return tsa.reply(query)[:-1]


def _longer(tsa: TimestampAuthority, query: bytes, note: bytes, _: Path) -> bytes:
    return tsa.reply(query) + b"\0"


def _page(tsa: TimestampAuthority, query: bytes, note: bytes, _: Path) -> bytes:
    return b"<html>Sign in</html>"


def _nothing(tsa: TimestampAuthority, query: bytes, note: bytes, _: Path) -> bytes:
    return b""


def _ten_mebibytes(tsa: TimestampAuthority, query: bytes, note: bytes, _: Path) -> bytes:
    return tsa.reply(query) + bytes(10 * 1024 * 1024)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (_other_nonce, "nonce"),
        (_other_imprint, "other bytes"),
        (_of_another, "leads to CN=Development TSA root"),
        (_rejection, "rejection"),
        (_other_purpose, "holds"),
        (_cut, "cannot be read as a response (RFC 3161)"),
        (_longer, "cannot be read as a response (RFC 3161)"),
        (_page, "it is a page"),
        (_nothing, "it is empty"),
        (_ten_mebibytes, "longer than 65536"),
    ],
)
def test_an_answer_that_is_not_what_was_asked_counts_for_nothing(
    place: Place, authority: TimestampAuthority, tmp_path: Path, fault: Fault, said: str
) -> None:
    note = place.world.published().note

    def answer(request: Request) -> bytes | None:
        body = fault(authority, request.body, note, tmp_path)
        return None if body is None else http_answer(200, body)

    place.age()
    with Receiver(answer) as receiver:
        place.stamped_by(receiver.url(), authority.ca_file)
        place.stamp()
    assert stored(place) == []
    (trouble,) = place.troubles()
    assert trouble.part == "timestamps"
    assert said in trouble.detail
    (job,) = place.jobs()
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

    place.age()
    with Receiver(answer) as receiver:
        place.stamped_by(receiver.url(), known)
        place.stamp()
    (trouble,) = place.troubles()
    assert "does not include its signer's certificate" in trouble.detail
    assert place.jobs()[0].error == trouble.detail


def test_a_chain_is_not_looked_for_without_its_signer_s_certificate(
    authority: TimestampAuthority, tmp_path: Path
) -> None:
    """Whatever the library lets pass."""
    query = timestamps.request(b"some bytes").as_bytes()
    read = decode_timestamp_response(_without_its_signer(authority, query, b"", tmp_path))
    with pytest.raises(NotStamped, match="signer's certificate"):
        timestamps._chain(read, read_certificates(authority.ca_file.read_bytes()))


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
    monkeypatch.setattr(external_post, "DEADLINE_SECONDS", 0.3)
    place.age()
    with Listener(serve) as listener:
        place.stamped_by(listener.url(), authority.ca_file)
        place.stamp()
    (trouble,) = place.troubles()
    assert "time was up after 0.3 s" in trouble.detail


def test_an_authority_that_is_down_is_asked_again_by_one_job(
    place: Place, authority: TimestampAuthority
) -> None:
    place.stamped_by(NOBODY, authority.ca_file)
    place.stamp()
    for _ in range(5):
        place.retry()
    (job,) = place.jobs()
    assert (job.status, job.attempts) == ("dead", 4)
    place.stamp()
    (job,) = place.jobs()
    assert (job.status, job.attempts) == ("retrying", 1), "the same row, once more"
    place.grow()
    with authority:
        place.stamped_by(authority.url, authority.ca_file)
        place.stamp()
    assert [row.size for row in stored(place)] == [4], "the newest, and only that"


def test_that_nothing_is_stamped_is_said_since_when_and_once_each_way(
    place: Place, authority: TimestampAuthority
) -> None:
    place.age()
    with structlog.testing.capture_logs() as lines:
        place.stamped_by(NOBODY, authority.ca_file)
        for _ in range(2):
            place.stamp()
            place.retry()
            place.grow()
        (trouble,) = place.troubles()
        with authority:
            place.stamped_by(authority.url, authority.ca_file)
            place.retry()
    with place.owner.connect() as connection:
        query = "SELECT published_at FROM checkpoints WHERE size = 3"
        assert trouble.since == connection.scalar(text(query)), "the first that is not stamped"
    assert place.troubles() == []
    told = [each["event"] for each in lines if "part" in each]
    assert told == ["unanchored", "anchoring_recovered"]


def test_one_failed_try_is_no_trouble_yet(place: Place, authority: TimestampAuthority) -> None:
    place.stamped_by(NOBODY, authority.ca_file)
    with structlog.testing.capture_logs() as lines:
        place.stamp()
        for _ in range(2):
            assert place.troubles() == []
            place.retry()
        assert place.troubles() == []
        assert [each for each in lines if each["event"] == "unanchored"] == []
        place.retry()
    assert [each.part for each in place.troubles()] == ["timestamps"]
    assert [each["log_level"] for each in lines if each["event"] == "unanchored"] == ["error"]


# What somebody puts into the table


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


def test_how_far_stamps_reach_is_told_by_the_first_that_holds(
    place: Place, authority: TimestampAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody may ask for readiness: no more is verified than it takes."""
    place.set(tsa_ca_file=read_certificates(authority.ca_file.read_bytes()))
    for _ in range(3):
        place.grow()
        put_stamp(place.owner, authority)
    verify_one, verified = timestamps.verify, list[bytes]()

    def counted(response: bytes, data: bytes, trusted: Sequence[x509.Certificate]) -> datetime:
        verified.append(response)
        return verify_one(response, data, trusted)

    monkeypatch.setattr(timestamps, "verify", counted)
    with place.database.across_tenants() as session:
        last, trusted = place.world.published(), place.runtime.settings.tsa_ca_file
        assert evidence.reach(session, last, None, trusted).stamped == 6
        assert len(verified) == 1
        assert evidence.reach(session, last, None).stamped == 0
        assert len(verified) == 1, "without a root to trust there is nothing to verify"


def reached(place: Place) -> int:
    """How many leaves are stamped, as readiness is told."""
    with place.database.across_tenants() as session:
        last, trusted = place.world.published(), place.runtime.settings.tsa_ca_file
        found = evidence.reach(session, last, None, trusted)
        assert found.witnessed == evidence.reach(session, last, None).stamped == 0
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
            "INSERT INTO checkpoint_timestamps (generation, size, response, tsa_chain, gen_time)"
            " SELECT generation, size, '\\x00', '', now() FROM checkpoints WHERE size > :beyond",
            beyond=23 - junk,
        )
        place.age()
        place.stamp()
    (trouble,) = place.troubles()
    assert "status 503" in trouble.detail
    first = 4 if junk == 1 else 23 - checkpoint_round.MOST_LOOKED_AT + 1
    with place.owner.connect() as connection:
        query = "SELECT published_at FROM checkpoints WHERE size = :size"
        assert trouble.since == connection.scalar(text(query), {"size": first})


def test_a_stamp_without_a_root_to_trust_is_given_out_and_vouches_for_nothing(
    place: Place, authority: TimestampAuthority
) -> None:
    put_stamp(place.owner, authority)
    roots = read_certificates(authority.ca_file.read_bytes())
    with place.database.across_tenants(snapshot=True) as session:
        last = place.world.published()
        without = evidence.best(session, last, 0, None)
        trusting = evidence.best(session, last, 0, None, roots)
    assert (without.rank, trusting.rank) == (Rank.LOG, Rank.TIMESTAMPED)
    assert without.timestamp == trusting.timestamp is not None


def test_nonsense_in_the_table_is_not_looked_at_without_an_end(
    place: Place, authority: TimestampAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence_search, "_MOST_REFUSED", 3)
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
        assert evidence.best(session, place.world.published(), 0, None, roots).rank is Rank.LOG


def test_a_trouble_of_an_authority_that_is_not_asked_any_more_is_forgotten(
    place: Place, authority: TimestampAuthority
) -> None:
    place.age()
    with Receiver(http_answer(503)) as receiver:
        place.stamped_by(receiver.url(), authority.ca_file)
        place.stamp()
    assert "status 503" in place.troubles()[0].detail
    place.set(tsa_url=None, tsa_ca_file=())
    place.stamp()
    assert place.troubles() == []
    place.retry()
    assert place.jobs()[0].status == "succeeded"


def test_no_transaction_is_open_while_an_authority_is_asked(
    place: Place, authority: TimestampAuthority
) -> None:
    query = """
    SELECT count(*) FROM pg_stat_activity
     WHERE datname = current_database() AND state LIKE 'idle in transaction%'
    """

    def answer(request: Request) -> bytes:
        # The process's other threads have short ones of their own; none may last until this ends.
        with place.owner.connect() as connection:
            while connection.scalar(text(query)):
                connection.rollback()
        return http_answer(200, authority.reply(request.body))

    with Receiver(answer) as receiver:
        place.stamped_by(receiver.url(), authority.ca_file)
        place.stamp()
    assert len(stored(place)) == 1


def test_what_is_stamped_has_the_log_s_own_signature_only(place: Place) -> None:
    note = Note.parse(place.world.published().note)
    assert len(note.signatures) == 1


def test_who_dies_between_the_answer_and_its_record_is_followed_by_another(
    place: Place, authority: TimestampAuthority
) -> None:
    """Two may even have asked, when the first was only slow: one stamp is kept."""
    with authority:
        place.stamped_by(authority.url, authority.ca_file)
        settings = place.runtime.settings
        stamper = Stamper(place.runtime.authorities, settings.tsa_url, settings.tsa_ca_file)
        job = Job(tenant_id=NO_TENANT, id=ids.new(), attempts=0, args="{}")
        with place.database.across_tenants() as session:
            first, second = (stamper.step(session, NO_TENANT, job) for _ in range(2))
        assert isinstance(first, Errand)
        assert isinstance(second, Errand)
        lost, said = first.talk(), second.talk()
    assert stored(place) == []
    for errand, answer in ((second, said), (first, lost)):
        with place.database.across_tenants() as session:
            assert isinstance(errand.record(session, answer), Step)
    (row,) = stored(place)
    assert isinstance(said, Stamp)
    assert row.response == said.response
