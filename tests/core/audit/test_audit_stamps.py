"""Timestamps and cosignatures while a chain is verified.

Each is over a checkpoint that the log grew out of; what was changed in the database is refused.
"""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from app.core.anchoring.monitor import QuorumGate
from app.core.log import publication, succession
from app.core.verification import anchored_heads
from app.core.verification.published_log import Trust
from app.errors import LogDamaged
from app.evidence.timestamps import read_certificates
from app.ledger.policy import Policy
from dev.tsa import TimestampAuthority
from tests.support.evidence.anchoring import put_line, put_stamp
from tests.support.evidence.chains import Place, anchor, daily_run, standing
from tests.support.evidence.witnesses import Witness
from tests.support.secrets import MASTER_KEYS


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> TimestampAuthority:
    return TimestampAuthority(tmp_path_factory.mktemp("tsa"))


@pytest.fixture(scope="module")
def witness() -> Witness:
    return Witness("witness.test")


def policy_of(witness: Witness) -> Policy:
    return Policy.parse(f"witness w {witness.vkey}\nquorum w\n".encode())


@pytest.fixture
def stamped(place: Place, authority: TimestampAuthority, witness: Witness) -> Place:
    """Return a place whose newest checkpoint was stamped and cosigned."""
    return stamp_newest(place, authority, witness)


def stamp_newest(place: Place, authority: TimestampAuthority, witness: Witness) -> Place:
    put_stamp(place.owner.engine, authority)
    put_line(place.owner.engine, witness)
    return trusting(place, authority, witness)


def trusting(
    place: Place, authority: TimestampAuthority | None = None, witness: Witness | None = None
) -> Place:
    """Return a place whose verifier trusts these alone."""
    roots = () if authority is None else read_certificates(authority.ca_file.read_bytes())
    trust = Trust(roots, None if witness is None else policy_of(witness))
    return replace(place, verifier=replace(place.verifier, trust=trust))


@pytest.fixture
def vouched(stamped: Place) -> Place:
    """Return that place after its log has grown by another head."""
    stamped.anchor()
    return stamped


@pytest.mark.parametrize("full", [False, True])
def test_what_vouches_for_a_chain_is_verified_and_named(stamped: Place, *, full: bool) -> None:
    anchors = stamped.verify(full=full)["anchors"]
    assert anchors["anchored_by"] == ["log", "timestamps", "witnesses"]
    stamped.anchor()
    report = stamped.verify(full=full)
    anchors = report["anchors"]
    assert (anchors["timestamps"], anchors["cosignatures"]) == (1, 1)
    assert anchors["newest_timestamp"]["size"] == 302
    # The head 12 came after both, so only the log vouches for it.
    assert (report["anchored_through"], anchors["anchored_by"]) == (12, ["log"])


@pytest.mark.parametrize("full", [False, True])
def test_what_a_witness_said_of_a_candidate_is_no_damage(
    stamped: Place, witness: Witness, *, full: bool
) -> None:
    """It is about to be published, and nothing of it is yet."""
    stamped.append()
    anchor(stamped.world)
    stamped.world.sequencer(gate=QuorumGate(policy_of(witness), timedelta(hours=1))).run()
    with stamped.world.database.across_tenants() as session:
        candidate = publication.current_candidate(session)
    assert candidate is not None
    stamped.owner(
        "INSERT INTO checkpoint_cosignatures (generation, size, name, key_hash, line)"
        " VALUES (1, :size, :name, :key_hash, :line)",
        size=candidate.checkpoint.size,
        name=witness.name,
        key_hash=witness.vkey.key_hash,
        line=str(witness.cosign(candidate.checkpoint.text)),
    )
    anchors = stamped.verify(full=full)["anchors"]
    assert (anchors["cosignatures"], anchors["pending"]) == (1, 1)


def test_who_is_not_trusted_vouches_for_nothing_and_is_no_damage(
    stamped: Place, tmp_path: Path
) -> None:
    """No root and no policy is given, or the authority is not trusted any more."""
    for place in (trusting(stamped), trusting(stamped, TimestampAuthority(tmp_path))):
        anchors = place.verify()["anchors"]
        assert (anchors["timestamps"], anchors["timestamps_unverified"]) == (0, 1)
        assert (anchors["newest_timestamp"], anchors["cosignatures"]) == (None, 0)
        assert anchors["anchored_by"] == ["log"]


def test_what_vouched_for_a_log_that_ended_does_not_vouch_for_its_successor(
    place: Place, authority: TimestampAuthority, witness: Witness
) -> None:
    """Although it is of a size beyond the head's place there."""
    place.world.grow(50)
    stamped = stamp_newest(place, authority, witness)
    assert stamped.verify()["anchors"]["anchored_by"] == ["log", "timestamps", "witnesses"]
    succession.succeed(stamped.world.sequencer(), MASTER_KEYS, force=True)
    report = stamped.verify()
    stated = stamped.owner.scalar("SELECT max(size) FROM checkpoint_timestamps")
    assert (report["anchored_through"], report["anchors"]["timestamps"]) == (9, 1)
    assert report["anchors"]["leaf_index"] < stated
    assert report["anchors"]["anchored_by"] == ["log"]


def test_from_the_newest_anchor_on_stamps_are_reported_as_not_read(stamped: Place) -> None:
    anchors = stamped.verify(since_anchor=True)["anchors"]
    assert {name for name, value in anchors.items() if value is None} == {
        "disabled_since",
        "anchored_by",
        "timestamps",
        "timestamps_unverified",
        "newest_timestamp",
        "cosignatures",
    }


@pytest.mark.parametrize(
    "attack",
    [
        (
            "UPDATE checkpoint_timestamps SET"
            " response = set_byte(response, 300, get_byte(response, 300) # 1)"
        ),
        "UPDATE checkpoint_timestamps SET response = ''",
        "UPDATE checkpoint_timestamps SET tsa_chain = 'no PEM'",
        "UPDATE checkpoint_timestamps SET size = 1",
        "UPDATE checkpoint_cosignatures SET size = 1",
        "UPDATE checkpoint_cosignatures SET line = 'nonsense'",
        "UPDATE checkpoints SET note = note || '\n' WHERE size = 302",
    ],
)
def test_what_was_changed_in_the_database_does_not_vouch(vouched: Place, attack: str) -> None:
    vouched.owner(attack)
    with pytest.raises(LogDamaged):
        vouched.verify()


def test_a_cosignature_over_another_log_does_not_vouch(vouched: Place, witness: Witness) -> None:
    other = "records.test/log\n302\n" + "A" * 43 + "=\n"
    line = str(witness.cosign(other))
    vouched.owner("UPDATE checkpoint_cosignatures SET line = :line", line=line)
    with pytest.raises(LogDamaged, match="302"):
        vouched.verify()


FLIP_STAMP = (
    "UPDATE checkpoint_timestamps SET"
    " response = set_byte(response, 300, get_byte(response, 300) # 1) WHERE size = 302"
)


def test_a_timestamp_that_is_put_right_is_healed_by_the_next_who_looks(vouched: Place) -> None:
    vouched.owner(FLIP_STAMP)
    with pytest.raises(LogDamaged):
        vouched.verify()
    assert "timestamp over size 302" in (standing(vouched) or "")
    vouched.owner(FLIP_STAMP)
    assert vouched.verify(since_anchor=True)
    assert standing(vouched) is not None, "nobody looked at it"
    assert vouched.verify()
    assert standing(vouched) is None


@pytest.mark.parametrize(
    ("damage", "repair"),
    [
        (FLIP_STAMP, FLIP_STAMP),
        (
            "UPDATE checkpoint_cosignatures SET line = '?' || line WHERE size = 302",
            "UPDATE checkpoint_cosignatures SET line = substr(line, 2) WHERE size = 302",
        ),
        (
            "UPDATE checkpoints SET note = note || '\n' WHERE size = 302",
            "UPDATE checkpoints SET note = substr(note, 1, length(note) - 1) WHERE size = 302",
        ),
    ],
)
def test_what_only_a_full_verification_looks_at_is_healed_by_one(
    vouched: Place,
    authority: TimestampAuthority,
    witness: Witness,
    monkeypatch: pytest.MonkeyPatch,
    damage: str,
    repair: str,
) -> None:
    # Also where a request does not read the whole log.
    monkeypatch.setattr(anchored_heads, "LOOK_BACK", 256)
    newer = stamp_newest(vouched, authority, witness)
    newer.owner(damage)
    with pytest.raises(LogDamaged):
        newer.verify(full=True)
    assert newer.verify()
    daily_run(newer)
    assert standing(newer) is not None
    newer.owner(repair)
    assert newer.verify()
    assert standing(newer) is not None
    assert newer.verify(full=True)
    assert standing(newer) is None
