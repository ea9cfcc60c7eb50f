"""The daily run verifies the log once and every tenant's chain."""

import structlog

from app.core import tenants
from tests.support.evidence.chains import Place, daily_run, standing
from tests.support.secrets import MASTER_KEYS


def test_a_daily_run_reads_the_log_once_and_every_chain(place: Place) -> None:
    other, _ = tenants.create(place.world.database, MASTER_KEYS, "another")
    place.anchor()
    report = daily_run(place)
    assert (report["log"], report["heads"], report["unknown_chains"]) == ("intact", 4, 0)
    assert (report["tenants"], report["entries"], report["broken"]) == (2, 14, 0)
    assert standing(place) is None
    assert place.verifier.check_chain(other, None, None) == 2


def test_a_daily_run_finds_what_was_done_to_one_tenant_and_not_the_others(place: Place) -> None:
    tenants.create(place.world.database, MASTER_KEYS, "another")
    place.anchor()
    place.owner.forge_tail(4, 12)
    with structlog.testing.capture_logs() as lines:
        report = daily_run(place)
    assert report["broken"] == 1
    assert [(line["event"], line["seq"]) for line in lines] == [("audit_chain_broken", 5)]
    assert len(place.events()) == 1
    daily_run(place)
    assert len(place.events()) == 1
    assert standing(place) == "1 broken"


def test_a_tenant_that_cannot_be_verified_does_not_stop_the_others_verification(
    place: Place,
) -> None:
    last, _ = tenants.create(place.world.database, MASTER_KEYS, "behind it")
    place.owner(
        "UPDATE audit_entries SET action = 'other' WHERE tenant_id = :last AND seq = 1", last=last
    )
    place.owner("ALTER TABLE audit_heads ALTER COLUMN hash DROP NOT NULL")
    place.owner("UPDATE audit_heads SET hash = NULL WHERE tenant_id = :tenant")
    try:
        with structlog.testing.capture_logs() as lines:
            report = daily_run(place)
    finally:
        place.owner("UPDATE audit_heads SET hash = sha256('') WHERE hash IS NULL")
        place.owner("ALTER TABLE audit_heads ALTER COLUMN hash SET NOT NULL")
    assert (report["failed"], report["broken"], report["tenants"]) == (1, 1, 2)
    assert [line["event"] for line in lines] == ["audit_chain_not_verified", "audit_chain_broken"]
    assert (lines[0]["log_level"], lines[0]["error"]) == ("critical", "AttributeError")
