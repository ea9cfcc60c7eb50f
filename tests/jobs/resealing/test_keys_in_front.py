"""Each process announces the key it has in front, and `/readyz` names a key that is missing."""

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from app.core.master_keys import key_registry
from app.database import database_now
from app.lib.crypto.sealing import MasterKeys
from app.lib.metric_registry import Tally
from jobs.actors import ticks
from jobs.process import runtime as process
from tests.jobs.resealing.sealed import fill
from tests.jobs.resealing.sites import A_ID, B_ID, DROPPABLE, A, B, Site
from tests.support.faults import until

LATELY = "bool_or(in_front_at > clock_timestamp() - interval '3 minutes')"


def test_a_key_that_a_process_still_seals_under_is_not_said_to_be_dropped(site: Site) -> None:
    site.reseal(B, A)
    with site.api(A, B) as api:
        api.get("/readyz")
    (verdict,) = [line for line in site.status(B, A).lines() if line.startswith(A_ID)]
    assert "keep it: nothing is under it, but it was in front of some process" in verdict
    with site.api(B) as api:
        assert A_ID in api.get("/readyz").json["parts"]["master_keys"]
    site.later()
    (verdict,) = [line for line in site.status(B, A).lines() if line.startswith(A_ID)]
    assert verdict == f"{A_ID}: {DROPPABLE}"
    with site.api(B) as api:
        assert api.get("/readyz").json["parts"]["master_keys"] == "up"
    # One that comes back in front seals again, and is missed again.
    with site.api(A, B) as api:
        api.get("/readyz")
    with site.api(B) as api:
        assert api.get("/readyz").json["parts"]["master_keys"] == key_registry.say_missing([A_ID])


def test_a_key_that_only_ever_stood_behind_is_not_missed(site: Site) -> None:
    """Half the processes were restarted with the next key behind; or it was withdrawn again."""
    for keys in ((A, B), (A,), (B, A)):
        with site.api(*keys) as api:
            assert api.get("/readyz").json["parts"]["master_keys"] == "up"
    # Now it was in front, and may have sealed.
    with site.api(A) as api:
        assert api.get("/readyz").json["parts"]["master_keys"] == key_registry.say_missing([B_ID])


def test_a_key_that_something_is_under_is_missed_though_no_process_had_it_in_front(
    site: Site,
) -> None:
    fill(site)
    site.execute("DELETE FROM master_keys")
    assert A_ID in site.status(B, A).seals
    with site.api(B) as api:
        assert api.get("/readyz").json["parts"]["master_keys"] == key_registry.say_missing([A_ID])


@pytest.mark.parametrize("kind", ["web", "worker"])
def test_a_process_announces_the_key_it_has_in_front_without_a_request(
    site: Site, kind: str, command: Callable[..., tuple[int, str]]
) -> None:
    site.reseal(B, A)
    site.later()
    opened: Callable[..., AbstractContextManager[object]]
    opened = site.api if kind == "web" else site.worker
    with opened(A, B):
        until(lambda: site.scalar(f"SELECT {LATELY} FROM master_keys WHERE key_id = '{A_ID}'"))
        (verdict,) = [line for line in site.status(B, A).lines() if line.startswith(A_ID)]
        assert "keep it: nothing is under it, but it was in front of some process" in verdict
        code, said = command((B, A), "reseal")
        assert (code, A_ID in said) == (1, True)


def test_a_key_that_was_in_front_when_a_long_look_began_is_not_found_empty(site: Site) -> None:
    """It may have sealed what was looked through already."""
    site.reseal(B, A)
    with site.api(A, B) as api:
        api.get("/readyz")
    keys = MasterKeys.parse(f"{B},{A}")
    with site.database() as database, database.across_tenants() as session:
        began = database_now(session)
    site.later()
    began -= timedelta(minutes=4)
    with site.database() as database, database.across_tenants() as session:
        key_registry.settle(session, keys, {B_ID}, began=began)
        assert [key for key, _ in key_registry.in_front(session, besides=B_ID, since=began)] == [
            A_ID
        ]
    with site.api(B) as api:
        assert api.get("/readyz").json["parts"]["master_keys"] == key_registry.say_missing([A_ID])


def test_a_key_that_was_dropped_too_early_is_missed_at_once_and_loudly(site: Site) -> None:
    with site.api(A) as api:
        assert "master_keys" not in api.get("/readyz").json["degraded"]
    with site.api(B) as api:
        answer = api.get("/readyz").json
        assert "master_keys" in answer["degraded"]
        assert answer["parts"]["master_keys"] == key_registry.say_missing([A_ID])
        assert A_ID in answer["parts"]["master_keys"]
    process.start(dataclasses.replace(site.given(B), redis_url=None), threads=4, tally=Tally())
    try:
        with capture_logs() as said:
            ticks.check_master_keys(process.runtime())
    finally:
        process.stop()
    (line,) = [line for line in said if line["event"] == "master_key_missing"]
    assert (line["log_level"], line["missing"]) == ("critical", [A_ID])
    with site.api(B, A) as api:
        assert api.get("/readyz").json["parts"]["master_keys"] == "up"
