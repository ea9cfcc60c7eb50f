"""Chains in the log that no tenant has are reported until an operator acknowledges them."""

from collections.abc import Callable

import pytest
import structlog

from app.core import tenants
from app.core.audit import chain_identity
from app.core.verification import unknown_chains
from app.core.verification.verifier import Asked
from app.errors import NotFound
from app.lib.crypto.sealing import MasterKeys
from tests.support.evidence.chains import Place, daily_run, standing
from tests.support.secrets import MASTER_KEYS


def test_an_operator_acknowledges_a_chain_by_its_name_alone(
    manage: Callable[..., tuple[int, str]],
) -> None:
    status, said = manage("audit", "acknowledge", "0" * 64)
    assert (status, "No chain of this name is open" in said) == (1, True)
    assert manage("audit", "acknowledge", "0" * 63)[0] == 2


def drop_tenant(place: Place) -> None:
    place.owner(
        "SET LOCAL session_replication_role = replica",
        *(
            f"DELETE FROM {table} WHERE tenant_id = :tenant"
            for table in ("audit_heads", "audit_entries", "audit_anchors")
        ),
        "DELETE FROM tenants WHERE id = :tenant",
    )


def rename(place: Place) -> None:
    place.owner(
        "DELETE FROM audit_anchors WHERE tenant_id = :tenant",
        "UPDATE tenants SET chain_salt = sha256('') WHERE id = :tenant",
    )


@pytest.mark.parametrize(
    ("attack", "told", "stands"),
    [
        (rename, ["audit_chain_broken"], "1 broken; 1 in the log without a tenant"),
        (drop_tenant, [], "1 in the log without a tenant"),
    ],
)
def test_a_chain_that_no_tenant_has_is_missed_by_the_log_alone(
    place: Place, attack: Callable[[Place], None], told: list[str], stands: str
) -> None:
    other, _ = tenants.create(place.world.database, MASTER_KEYS, "another")
    attack(place)
    with structlog.testing.capture_logs() as lines:
        report = daily_run(place)
    assert report["unknown_chains"] == 1
    assert [line["event"] for line in lines] == ["audit_chain_without_tenant", *told]
    assert standing(place) == stands
    answer = place.verifier.verify(other, Asked())
    assert (answer["unknown_chains"], answer["unknown_chains_at"]) == (1, report["began"])


def acknowledge(place: Place, chain: bytes) -> None:
    with place.world.database.across_tenants() as session:
        unknown_chains.acknowledge(session, MASTER_KEYS, chain)


def test_a_chain_whose_tenant_was_removed_on_purpose_is_closed_by_its_name(place: Place) -> None:
    name = bytes.fromhex(place.verify()["chain"])
    with pytest.raises(NotFound):
        acknowledge(place, name)
    drop_tenant(place)
    daily_run(place)
    assert standing(place) == "1 in the log without a tenant"
    with structlog.testing.capture_logs() as lines:
        acknowledge(place, name)
    assert [(line["event"], line["chain"]) for line in lines] == [
        ("unknown_chain_acknowledged", name.hex())
    ]
    assert standing(place) is None
    assert daily_run(place)["unknown_chains"] == 0
    assert standing(place) is None


def test_who_has_the_database_alone_acknowledges_nothing(place: Place) -> None:
    name = bytes.fromhex(place.verify()["chain"])
    drop_tenant(place)
    daily_run(place)
    other = MasterKeys.parse(MasterKeys.generate())
    with place.world.database.across_tenants() as session:
        unknown_chains.acknowledge(session, other, name)
    assert daily_run(place)["unknown_chains"] == 1
    assert standing(place) == "1 in the log without a tenant"


def test_nothing_is_healed_while_a_chain_without_a_tenant_is_open(place: Place) -> None:
    """The break may be in a chain of that name, which its tenant does not have any more."""
    name = bytes.fromhex(place.verify()["chain"])
    place.owner.forge_tail(4, 12)
    place.broken()
    salt, seal = chain_identity.new(MASTER_KEYS, place.tenant_id)
    place.owner("DELETE FROM audit_anchors WHERE tenant_id = :tenant")
    place.owner(
        "UPDATE tenants SET chain_salt = :salt, chain_seal = :seal WHERE id = :tenant",
        salt=salt,
        seal=seal,
    )
    daily_run(place)
    assert place.verify()["unknown_chains"] == 1
    assert standing(place) == "1 broken; 1 in the log without a tenant"
    acknowledge(place, name)
    assert place.verify()
    assert standing(place) is None


def test_the_count_of_unknown_chains_is_null_before_the_first_daily_run(place: Place) -> None:
    assert place.verify()["unknown_chains"] is None
    began = daily_run(place)["began"]
    answer = place.verify()
    assert (answer["unknown_chains"], answer["unknown_chains_at"]) == (0, began)


FORGET = "DELETE FROM audit_breaks WHERE tenant_id = '00000000-0000-0000-0000-000000000000'"


def test_what_a_daily_run_found_of_unknown_chains_is_not_the_owner_s_to_change(
    place: Place,
) -> None:
    other, _ = tenants.create(place.world.database, MASTER_KEYS, "another")
    drop_tenant(place)
    began = daily_run(place)["began"]
    place.owner(FORGET, "UPDATE jobs SET progress = '{}' WHERE dedupe_key = 'all'")
    answer = place.verifier.verify(other, Asked())
    assert (answer["unknown_chains"], answer["unknown_chains_at"]) == (1, began)
    place.owner("UPDATE sealed_notes SET sealed = 'nothing found' WHERE name = 'unknown_chains'")
    answer = place.verifier.verify(other, Asked())
    assert (answer["unknown_chains"], answer["unknown_chains_at"]) == (None, None)
