"""Rows that the database's owner wrote are no stamps: passed over, replaced, no cover."""

from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path

import pytest
import structlog
from cryptography import x509

from app.core.anchoring import checkpoint_round, evidence, evidence_search
from app.core.anchoring.evidence import Rank
from app.lib.crypto import timestamps
from app.lib.crypto.timestamps import read_certificates
from dev.tsa import KeyType, TimestampAuthority
from tests.support.evidence.anchoring import Place, put_stamp
from tests.support.servers.receivers import Receiver, http_answer


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

    def counted(response: bytes, data: bytes, trusted: Sequence[x509.Certificate]) -> str:
        verified.append(response)
        return verify_one(response, data, trusted)

    monkeypatch.setattr(timestamps, "verify", counted)
    with place.database.across_tenants() as session:
        last, trusted = place.world.published(), place.runtime.settings.tsa_ca_file
        assert evidence.Chooser(session, last, None, trusted).reach().stamped == 6
        assert len(verified) == 1
        assert evidence.Chooser(session, last, None).reach().stamped == 0
        assert len(verified) == 1, "without a root to trust there is nothing to verify"


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
            "INSERT INTO checkpoint_timestamps (generation, size, response, tsa_chain, gen_time)"
            " SELECT generation, size, '\\x00', '', now() FROM checkpoints WHERE size > :beyond",
            beyond=23 - junk,
        )
        place.age()
        place.stamp()
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
        another = evidence.Chooser(session, place.world.published(), None, roots)
        assert another.best(0).rank is Rank.LOG
