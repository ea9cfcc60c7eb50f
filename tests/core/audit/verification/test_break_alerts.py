"""A break is reported once to the tenant and the operator, and stands until it is mended."""

import json
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
from app.errors import LogDamaged
from app.ledger.hash_chain import Head
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
