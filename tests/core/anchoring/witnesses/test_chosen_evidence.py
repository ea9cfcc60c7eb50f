"""Evidence is chosen by what it proves: quorum and timestamp, quorum, timestamp, log."""

from base64 import b64decode
from pathlib import Path

from app.core.anchoring import evidence
from app.core.anchoring.evidence import Rank
from app.core.log import publication
from app.lib.crypto.timestamps import read_certificates
from dev.tsa import TimestampAuthority
from tests.support.evidence.anchoring import put_stamp
from tests.support.evidence.witnessed import Witnessed
from tests.support.servers.receivers import Receiver, http_answer


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
