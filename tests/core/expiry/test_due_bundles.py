"""A bundle expires by the retention period in force, and stays expired if that is lengthened."""

from typing import Any

import pytest

from app.core.records import expiry
from tests.support.callers.api import Api, ApiOf
from tests.support.callers.making import make_record
from tests.support.workers.expiring import Expirer, keep_for


def expired(api: Api, record: dict[str, Any]) -> bool:
    return bool(api.get(f"/v1/records/{record['id']}").json["bundle"]["expired"])


def test_what_is_due_goes_and_what_is_not_stays(
    api: ApiOf, session: dict[str, Any], expirer: Expirer
) -> None:
    old, young = (make_record(api(), session["id"]) for _ in range(2))
    keep_for(api(), 30)
    expirer.age(old, days=31)
    expirer.age(young, days=29)
    assert expired(api(), old), "due before any job ran"
    assert expirer.run() == {"expired": 1}
    assert expirer.bundles() == {young["id"]}
    assert expired(api(), old)
    assert not expired(api(), young)
    entry = api().get("/v1/audit?order=desc&limit=1").json["data"][0]
    assert entry["action"] == "bundles.expire"
    assert entry["actor"] == {"type": "system", "id": "record-service"}
    assert entry["details"]["expired"] == 1


def test_nothing_due_makes_no_job_and_no_entry(
    api: ApiOf, session: dict[str, Any], expirer: Expirer
) -> None:
    make_record(api(), session["id"])
    keep_for(api(), 1)
    assert expirer.run() is None
    assert api().get("/v1/jobs").json["data"] == []


def test_a_second_run_finds_nothing(api: ApiOf, session: dict[str, Any], expirer: Expirer) -> None:
    expirer.age(make_record(api(), session["id"]), days=2)
    keep_for(api(), 1)
    assert expirer.run() == {"expired": 1}
    assert expirer.run() is None


def test_lengthening_brings_nothing_back_and_ends_nothing_early(
    api: ApiOf, session: dict[str, Any], expirer: Expirer
) -> None:
    due, young = (make_record(api(), session["id"]) for _ in range(2))
    expirer.age(due, days=5)
    expirer.age(young, days=2)
    keep_for(api(), 3)
    keep_for(api(), 3650)
    assert expired(api(), due)
    assert not expired(api(), young)
    keep_for(api(), None)
    assert expired(api(), due)
    assert expirer.run() == {"expired": 1}
    assert expirer.bundles() == {young["id"]}


def test_shortening_makes_due_at_once(
    api: ApiOf, session: dict[str, Any], expirer: Expirer
) -> None:
    record = make_record(api(), session["id"])
    expirer.age(record, days=5)
    keep_for(api(), 10)
    assert not expired(api(), record)
    keep_for(api(), 4)
    assert expired(api(), record)


def test_what_was_due_when_the_days_changed_goes_at_the_next_look(
    api: ApiOf, session: dict[str, Any], expirer: Expirer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "MOST_RECORDS", 2)
    records = [make_record(api(), session["id"]) for _ in range(6)]
    keep_for(api(), 40)
    for record in records[:4]:
        expirer.age(record, days=50)
    assert expirer.run() == {"expired": 4}
    assert expirer.run() is None
    keep_for(api(), 30)
    expirer.age(records[4], days=35)
    keep_for(api(), 3650)
    keep_for(api(), None)
    assert expirer.run() == {"expired": 1}
    assert expirer.bundles() == {records[5]["id"]}


def test_ids_of_records_do_not_decide(
    api: ApiOf, session: dict[str, Any], expirer: Expirer
) -> None:
    """The moment counts that `created_at` says, whatever time the id was made at."""
    records = [make_record(api(), session["id"]) for _ in range(3)]
    keep_for(api(), 10)
    for days, record in zip((9, 12, 11), records, strict=True):
        expirer.age(record, days=days)
    assert expirer.run() == {"expired": 2}
    assert expirer.bundles() == {records[0]["id"]}
