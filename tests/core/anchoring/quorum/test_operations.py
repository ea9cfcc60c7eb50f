"""Rebuilding and succession of a log with a candidate, and the commands for both."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from app.core.log import candidates
from app.core.log.recovery import checkpoint_rows, rebuild, succession
from app.errors import Conflict
from tests.core.anchoring.quorum.gated import AWAY, Gated
from tests.support.secrets import MASTER_KEYS


def test_a_log_with_a_candidate_is_whole(gated: Gated) -> None:
    gated.one.faults = [lambda _: AWAY]
    gated.sign()
    gated.place.work()
    gated.sequencer().tick(float("inf"))
    for repair in (False, True):
        with gated.place.database.across_tenants(snapshot=not repair) as session:
            assert rebuild.rebuild(
                session, None, repair_with=MASTER_KEYS if repair else None
            ).is_identical
    assert gated.settle() == 4


def test_a_candidate_that_a_rebuild_withdraws_takes_its_lines_along(gated: Gated) -> None:
    """Another sequencer went on from it, and this database lost the row of what came of that."""
    gated.two.faults = [lambda _: AWAY]
    gated.sign()
    gated.place.work()
    with gated.place.database.across_tenants() as session:
        found = candidates.current(session)
        assert found is not None
        right = replace(found.checkpoint, size=5, root=b"\1" * 32)
        checkpoint_rows.restore(
            session, MASTER_KEYS, found.generation, right, proven=0, has_ended=False
        )
    assert gated.stored() == []


def test_a_log_whose_witnesses_are_lost_can_be_succeeded(gated: Gated) -> None:
    gated.one.faults = [lambda _: AWAY] * 99
    gated.sign()
    assert gated.settle() == 3
    with pytest.raises(Conflict, match="can go on"):
        succession.succeed(gated.sequencer(), MASTER_KEYS, force=False)
    new = succession.succeed(gated.sequencer(), MASTER_KEYS, force=True)
    assert new.generation.predecessor is not None
    assert new.generation.predecessor.size == 4
    gated.one.faults = []
    for each in (gated.one, gated.two):
        each.log, each.seen = new.generation.verifier_key, None
    gated.later()
    gated.settle()
    assert gated.settle() == 5
    gated.place.world.prove()


def test_commands_publish_nothing_uncosigned_and_tell_of_the_candidate(
    gated: Gated, manage: Callable[..., tuple[int, str]]
) -> None:
    lines = [f"witness {n} {w.vkey} {gated.urls[w.name]}" for n, w in gated.named()]
    status, said = manage(
        *("log", "succeed", "--yes", "--force"),
        DATABASE_URL=gated.place.runtime.settings.database_url,
        LOG_HEAD_URL=gated.place.head.as_uri(),
        WITNESS_POLICY="\n".join([*lines, "group both all one two", "quorum both", ""]),
        LOG_REQUIRE_QUORUM="1",
    )
    assert status == 0
    assert "published: nothing\n" in said
    assert "candidate: 1 leaves, signed at " in said
    assert "published once the quorum has cosigned it\n" in said
