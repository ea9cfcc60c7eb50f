"""Anchors are answered with the best evidence: quorum, timestamp, log."""

from base64 import b64decode
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from app.core.anchoring import evidence
from app.core.anchoring.evidence import Rank
from app.core.log import publication, succession
from app.errors import LogDamaged, LogHalted
from app.evidence.timestamps import read_certificates
from app.ledger import leaves, merkle, notes
from app.ledger.leaves import AuditHead
from app.ledger.notes import VerifierKey
from app.ledger.policy import Policy
from dev.tsa import KeyType, TimestampAuthority
from tests.support.evidence.anchoring import Place, Witnessed, put_stamp
from tests.support.evidence.witnesses import Witness
from tests.support.servers.receivers import Receiver, http_answer


def check(anchor: dict[str, Any]) -> AuditHead:
    """Prove an anchor from nothing but itself; return its leaf."""
    proof = anchor["log_proof"]
    key = VerifierKey.parse(anchor["vkey"])
    found = notes.read_checkpoint(proof["checkpoint"].encode(), key)
    data = b64decode(proof["leaf_data"])
    path = [bytes.fromhex(each) for each in proof["inclusion"]]
    assert found.size == proof["tree_size"]
    leaf = merkle.leaf_hash(data)
    merkle.verify_inclusion(leaf, proof["leaf_index"], found.size, path, found.root)
    parsed = leaves.audit_head(data)
    assert parsed is not None
    assert (parsed.chain.hex(), parsed.seq, parsed.hash.hex(), parsed.at) == (
        anchor["chain"],
        anchor["seq"],
        anchor["hash"],
        anchor["at"],
    )
    return parsed


def test_an_anchor_s_proof_is_of_the_earliest_checkpoint_that_covers_it(place: Place) -> None:
    tenant = place.tenant()
    place.grow(3)
    place.anchor()
    first = place.publish()
    for _ in range(3):
        place.append(tenant)
        place.anchor()
        place.publish()
    place.grow(300)
    found = place.anchors(tenant)
    sizes = [each["log_proof"]["tree_size"] for each in found]
    assert sizes == [first + 3, first + 2, first + 1, first]
    for each in found:
        check(each)


def test_while_the_log_is_halted_anchors_wait_and_it_is_said_since_when(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = place.tenant()
    place.grow()
    place.run("UPDATE log_tiles SET data = set_byte(data, 3, get_byte(data, 3) # 1)")
    place.anchor()
    with pytest.raises(LogHalted):
        place.publish()
    assert place.anchors(tenant)[0]["log_proof"] is None
    place.anchor()
    assert place.troubles() == [], "it may be a moment"
    monkeypatch.setattr("app.core.anchoring.monitor.LATE", timedelta(0))
    place.anchor()
    (trouble,) = place.troubles()
    assert (trouble.part, trouble.alarm) == ("log", False)
    assert LogDamaged.slug in trouble.detail
    place.run("UPDATE log_tiles SET data = set_byte(data, 3, get_byte(data, 3) # 1)")
    place.publish()
    place.anchor()
    assert place.troubles() == []
    check(place.anchors(tenant)[0])


def test_an_anchor_without_its_leaf_is_damage_and_not_pending(place: Place) -> None:
    tenant = place.tenant()
    place.anchor()
    place.publish()
    place.run("DELETE FROM log_leaves")
    with pytest.raises(LogDamaged):
        place.anchors(tenant)


def test_anchors_are_found_again_in_the_log_that_follows_another(place: Place) -> None:
    tenant = place.tenant()
    place.anchor()
    place.publish()
    before = place.anchors(tenant)[0]
    succession.succeed(place.world.sequencer(), place.world.master_keys, force=True)
    place.publish()
    after = place.anchors(tenant)[0]
    assert after["vkey"] != before["vkey"]
    assert check(after) == check(before)


# A page takes so many statements, however many anchors it has.
MOST_STATEMENTS = 20


def test_a_page_of_anchors_takes_as_many_statements_as_one_anchor(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = TimestampAuthority(tmp_path / "tsa", KeyType.P256)
    tenant = place.tenant()
    for number in range(12):
        place.append(tenant)
        place.anchor()
        place.publish()
        if number % 4 == 3:
            put_stamp(place.owner, authority)
    place.set(tsa_ca_file=read_certificates(authority.ca_file.read_bytes()))
    witness = Witness("witness.test")
    policy = Policy.parse(f"witness w {witness.vkey}\nquorum w\n".encode())
    execute, sent = psycopg.Cursor.execute, []

    def counted(self: Any, query: Any, *args: Any, **options: Any) -> Any:
        sent.append(query)
        return execute(self, query, *args, **options)

    monkeypatch.setattr(psycopg.Cursor, "execute", counted)
    found = place.anchors(tenant, policy)
    assert len(sent) <= MOST_STATEMENTS, sent
    monkeypatch.undo()
    assert len(found) == 12
    assert [each["log_proof"]["tree_size"] for each in found] == [12] * 4 + [8] * 4 + [4] * 4
    for each in found:
        check(each)


def test_a_quorum_proves_more_than_a_timestamp_and_that_more_than_the_log(
    witnessed: Witnessed, tmp_path: Path
) -> None:
    place = witnessed.place
    authority = TimestampAuthority(tmp_path / "tsa")
    place.set(tsa_ca_file=read_certificates(authority.ca_file.read_bytes()))
    policy = witnessed.name("all")
    assert (place.chosen(0, policy).rank, place.chosen_size(0, policy)) == (Rank.LOG, 3)
    place.grow()
    put_stamp(place.owner, authority, 4)
    place.grow()
    put_stamp(place.owner, authority, 5)
    assert (place.chosen(0, policy).rank, place.chosen_size(0, policy)) == (Rank.TIMESTAMPED, 4)
    place.grow()
    witnessed.two.faults = [lambda _: http_answer(500)]
    place.stamp()
    assert place.chosen(0, policy).rank is Rank.TIMESTAMPED, "one of two is no quorum"
    for size in (7, 8):
        assert place.grow() == size
        place.stamp()
    found = place.chosen(0, policy)
    assert (found.rank, found.published.checkpoint.size) == (Rank.WITNESSED, 7)
    assert len(found.cosignatures) == 2
    assert found.timestamp is None, "all of it is of one checkpoint"
    any_of_them = witnessed.name("any")
    assert place.chosen_size(0, any_of_them) == 6
    assert place.chosen_size(6, any_of_them) == 7
    assert place.chosen_size(7, policy) == 8


def test_a_checkpoint_that_is_stamped_and_cosigned_proves_more_than_one_that_is_either(
    witnessed: Witnessed, tmp_path: Path
) -> None:
    place = witnessed.place
    policy = witnessed.name("all")
    tenant = place.tenant()
    place.anchor()
    authority = TimestampAuthority(tmp_path / "tsa")
    with Receiver(http_answer(500)) as receiver:
        place.stamped_by(receiver.url(), authority.ca_file)
        assert place.publish() == 4
        place.stamp()
        while any(job.status == "retrying" for job in place.jobs()):
            place.retry()
    assert (place.chosen(0, policy).rank, place.chosen_size(0, policy)) == (Rank.WITNESSED, 4)
    (before,) = place.anchors(tenant, policy)
    assert (before["log_proof"]["tree_size"], before["timestamp"]) == (4, None)
    place.grow()
    put_stamp(place.owner, authority, 5)
    assert place.chosen(0, policy).rank is Rank.WITNESSED, "of two checkpoints"
    assert place.chosen(4, policy).rank is Rank.TIMESTAMPED
    with authority:
        place.stamped_by(authority.url, authority.ca_file)
        for size in (6, 7):
            assert place.grow() == size
            place.stamp()
    found = place.chosen(0, policy)
    assert (found.rank, found.published.checkpoint.size) == (Rank.BOTH, 6), "the earliest"
    assert found.timestamp is not None
    assert len(found.cosignatures) == 2
    (anchor,) = place.anchors(tenant, policy)
    assert (anchor["log_proof"]["tree_size"], len(anchor["cosignatures"])) == (6, 2)
    assert b64decode(anchor["timestamp"]) == found.timestamp.response
    assert place.chosen_size(6, policy) == 7
    place.run("UPDATE checkpoint_timestamps SET response = '\\x00' WHERE size = 6")
    assert place.chosen_size(0, policy) == 7, "what does not hold is passed over"
    place.set(tsa_ca_file=())
    assert (place.chosen(0, policy).rank, place.chosen_size(0, policy)) == (Rank.WITNESSED, 4)


def test_one_reader_chooses_for_every_leaf_in_any_order_what_each_alone_would_get(
    witnessed: Witnessed,
) -> None:
    place = witnessed.place
    policy = witnessed.name("any")
    for round_ in range(4):
        place.grow(3)
        if round_ % 2:
            place.stamp()
    alone = {index: place.chosen_size(index, policy) for index in range(15)}
    for order in (range(15), range(14, -1, -1), [3, 14, 0, 9, 9, 2, 12]):
        with place.database.across_tenants(snapshot=True) as session:
            last = publication.current(session)
            assert last is not None
            chooser = evidence.Chooser(session, last, policy)
            found = {index: chooser.best(index).published.checkpoint.size for index in order}
        assert found == {index: alone[index] for index in order}
