"""A break is told once, stands until the chain verifies again; chains without a tenant."""

import json
from collections.abc import Callable
from threading import Event, Thread
from typing import Any

import pytest
import structlog

from app import ids
from app.core import tenants
from app.core.audit import chain
from app.core.callers import SYSTEM
from app.core.verification import alerts, anchored_heads
from app.core.verification.verifier import Asked
from app.errors import LogDamaged, NotFound
from app.ledger.hash_chain import Head
from app.lib.crypto.sealing import MasterKeys
from tests.support.evidence.chains import FLIP_BUNDLES, Place, daily_run, standing
from tests.support.secrets import MASTER_KEYS


def test_a_break_is_told_once_and_stands_until_the_chain_verifies_again(place: Place) -> None:
    body = place.owner.scalar(
        "SELECT body FROM audit_entries WHERE tenant_id = :tenant AND seq = 3"
    )
    change = "UPDATE audit_entries SET body = :body WHERE tenant_id = :tenant AND seq = 3"
    other, _ = tenants.create(place.world.database, MASTER_KEYS, "another")
    place.owner(change, body=body + b" ")
    with structlog.testing.capture_logs() as lines:
        assert place.broken() == (3, "bad_hash")
    (line,) = lines
    assert (line["event"], line["log_level"]) == ("audit_chain_broken", "critical")
    assert (line["tenant_id"], line["seq"]) == (ids.text("ten", place.tenant_id), 3)
    assert [place.broken() for _ in range(2)] == [(3, "bad_hash")] * 2
    assert place.verifier.verify(other, Asked())["status"] == "intact"
    (told,) = map(json.loads, place.events())
    assert (told["data"]["seq"], told["data"]["reason"]) == (3, "bad_hash")
    assert standing(place) == "1 broken"
    place.owner(change, body=body)
    assert place.verify(since_anchor=True)
    assert standing(place) == "1 broken"
    assert place.verify()
    assert standing(place) is None
    place.owner(change, body=body + b" ")
    place.broken()
    assert len(place.events()) == 2


def test_another_break_is_told_too(place: Place) -> None:
    place.owner.rewrite(9, action="other")
    place.broken()
    place.owner.rewrite(4, action="other")
    assert place.broken() == (5, "bad_link")
    assert len(place.events()) == 2


def test_a_forgotten_break_is_told_again(place: Place) -> None:
    place.owner.cut(8)
    place.broken()
    place.owner("DELETE FROM audit_breaks")
    place.broken()
    assert len(place.events()) == 2


def test_a_break_is_answered_even_if_it_cannot_be_kept(place: Place) -> None:
    place.owner.cut(8)
    place.owner("ALTER TABLE audit_breaks RENAME TO gone")
    try:
        with structlog.testing.capture_logs() as lines:
            assert place.broken() == (9, "missing")
    finally:
        place.owner("ALTER TABLE gone RENAME TO audit_breaks")
    assert [line["event"] for line in lines] == ["audit_chain_broken", "audit_break_not_stored"]


def test_a_head_that_a_caller_invented_is_refused_and_raises_no_alert(place: Place) -> None:
    with structlog.testing.capture_logs() as lines:
        assert place.broken(kept=Head(4, "0" * 64)) == (4, "other_head")
    assert [(line["event"], line["log_level"], line["kept"]) for line in lines] == [
        ("supplied_head_contradicted", "warning", {"seq": 4, "hash": "0" * 64})
    ]
    assert place.events() == []
    assert standing(place) is None


def test_a_log_that_does_not_hold_is_the_operator_s_trouble_until_it_holds(place: Place) -> None:
    place.owner(FLIP_BUNDLES)
    with pytest.raises(LogDamaged), structlog.testing.capture_logs() as lines:
        place.verify()
    assert [line["event"] for line in lines] == ["log_not_verified"]
    assert "tile/entries/000" in (standing(place) or "")
    assert place.events() == []
    assert daily_run(place)["log"] == "log-damaged"


def test_an_alert_about_the_log_ends_with_any_verification_that_finds_it_good(place: Place) -> None:
    other, _ = tenants.create(place.world.database, MASTER_KEYS, "another")
    with place.world.database.across_tenants() as session:
        alerts.report_unknown(session, bytes(32), 1, 0)
    place.owner(FLIP_BUNDLES)
    with pytest.raises(LogDamaged):
        place.verify()
    with pytest.raises(LogDamaged):
        place.verifier.verify(other, Asked())
    place.owner(FLIP_BUNDLES)
    assert place.verify(since_anchor=True)
    assert "tile/entries/000" in (standing(place) or "")
    assert place.verifier.verify(other, Asked())
    assert standing(place) == "1 in the log without a tenant", "for that nobody has looked"


def test_a_chain_that_is_broken_says_nothing_of_the_log(place: Place) -> None:
    place.owner(FLIP_BUNDLES)
    with pytest.raises(LogDamaged):
        place.verify()
    place.owner(FLIP_BUNDLES)
    place.owner.rewrite(3, action="other")
    place.broken()
    assert "1 broken; not verified" in (standing(place) or "")


def test_nothing_is_called_broken_while_eight_write_and_the_log_grows(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(anchored_heads, "LOOK_BACK", 256)
    stop = Event()
    failed: list[BaseException] = []

    def repeat(work: object) -> None:
        try:
            while not stop.is_set():
                work()  # type: ignore[operator]  # each is called without arguments
        except BaseException as error:  # noqa: BLE001  # shown by the test
            failed.append(error)
            stop.set()

    def write() -> None:
        with place.world.database.transaction(place.tenant_id) as session:
            chain.append(session, place.tenant_id, SYSTEM, "test.do", target=("test", "1"))

    workers = [Thread(target=repeat, args=(each,)) for each in [*[write] * 8, place.anchor]]
    for worker in workers:
        worker.start()
    reports: list[dict[str, Any]] = []
    try:
        while len(reports) < 24 or (reports[-1]["anchored_through"] or 0) <= 12:
            reports.append(place.verify())
            reports.append(place.verify(since_anchor=True))
        daily_run(place)
    finally:
        stop.set()
        for worker in workers:
            worker.join()
    assert failed == []
    assert reports[-1]["entries"] > reports[0]["entries"]
    assert standing(place) is None
    assert place.events() == []


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
        alerts.acknowledge(session, MASTER_KEYS, chain)


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
        alerts.acknowledge(session, other, name)
    assert daily_run(place)["unknown_chains"] == 1
    assert standing(place) == "1 in the log without a tenant"


def test_chains_that_are_acknowledged_at_once_are_both_kept(place: Place) -> None:
    """So is one whose note does not open meanwhile: its master key is not here."""
    across = place.world.database.across_tenants
    lost, *others = (bytes([number]) * 32 for number in range(3))
    with across() as session:
        for name in (lost, *others):
            alerts.report_unknown(session, name, 1, 0)
    other = MasterKeys.parse(MasterKeys.generate())
    with across() as session:
        alerts.acknowledge(session, other, lost)
    with across() as first, across() as second:
        for session, name in zip((first, second), others, strict=True):
            alerts.acknowledge(session, MASTER_KEYS, name)
    with across() as session:
        assert alerts.acknowledged(session, MASTER_KEYS) == {*others}
        assert alerts.acknowledged(session, other) == {lost}


def test_nothing_is_healed_while_a_chain_without_a_tenant_is_open(place: Place) -> None:
    """The break may be in a chain of that name, which its tenant does not have any more."""
    name = bytes.fromhex(place.verify()["chain"])
    place.owner.forge_tail(4, 12)
    place.broken()
    salt, seal = chain.new_salt(MASTER_KEYS, place.tenant_id)
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
