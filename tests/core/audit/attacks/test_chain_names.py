"""A chain's name counts only with its tenant's seal, and is never taken for another's."""

from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from app.core import tenants
from app.core.anchoring.anchors import AnchorReader
from app.core.log.head.head_store import FileHead
from app.core.verification.verifier import Asked
from app.errors import AuditChainBroken
from app.ledger import leaves
from tests.core.audit.attacks.forging import ANCHORS
from tests.support.evidence.chains import Owner, Place
from tests.support.secrets import MASTER_KEYS


def rename(place: Place, owner: Owner) -> None:
    """Write everything anew, forget the anchors, and give the chain a name the log never heard."""
    owner.forge_tail(1, 12)
    owner(
        f"DELETE FROM {ANCHORS}",
        "UPDATE tenants SET chain_salt = sha256(chain_salt) WHERE id = :tenant",
    )


@pytest.mark.parametrize("asked", [Asked(), Asked(full=True), Asked(since_anchor=True)])
def test_a_chain_under_another_name_is_broken_and_never_anchored(
    place: Place, asked: Asked
) -> None:
    rename(place, place.owner)
    with pytest.raises(AuditChainBroken) as caught:
        place.verifier.verify(place.tenant_id, asked)
    assert (caught.value.report["seq"], caught.value.report["reason"]) == (1, "other_chain")
    with structlog.testing.capture_logs() as lines:
        place.anchor()
    assert [(line["event"], line["log_level"]) for line in lines[:1]] == [
        ("audit_chain_not_sealed", "critical")
    ]
    assert place.owner.scalar(f"SELECT count(*) FROM {ANCHORS}") == 0
    assert place.broken() == (1, "other_chain")


@pytest.mark.parametrize(
    "change",
    [
        "chain_seal = NULL",
        "chain_salt = NULL",
        "chain_salt = NULL, chain_seal = NULL",
        "chain_seal = set_byte(chain_seal, 30, get_byte(chain_seal, 30) # 1)",
        "chain_seal = ''",
        "(chain_salt, chain_seal) = (SELECT chain_salt, chain_seal FROM tenants WHERE id = :other)",
    ],
)
def test_a_name_counts_only_with_its_tenant_s_own_seal(place: Place, change: str) -> None:
    other, _ = tenants.create(place.world.database, MASTER_KEYS, "another")
    place.owner(f"UPDATE tenants SET {change} WHERE id = :tenant AND id <> :other", other=other)
    assert place.broken() == (1, "other_chain")
    with (
        pytest.raises(AuditChainBroken, match="sealed"),
        place.world.database.transaction(place.tenant_id, snapshot=True) as session,
    ):
        AnchorReader(session, place.tenant_id, None, MASTER_KEYS)


def test_a_name_that_a_caller_kept_is_held_against_the_chain_s(place: Place) -> None:
    name = place.verify()["chain"]
    salt = place.owner.scalar("SELECT chain_salt FROM tenants WHERE id = :tenant")
    assert name == leaves.chain_name(salt).hex()
    assert place.verify(chain=name)["chain"] == name
    assert place.broken(chain="0" * 64) == (1, "other_chain")
    assert place.events() == []


def test_a_head_outside_is_called_kept_only_where_one_was_compared(
    place: Place, tmp_path: Path
) -> None:
    assert place.verify()["head_store"] == "kept"
    place.owner("UPDATE log_generations SET head_kept = false")
    nowhere = replace(place.verifier, head=FileHead(tmp_path / "nothing"))
    assert nowhere.verify(place.tenant_id, Asked())["head_store"] == "empty"
