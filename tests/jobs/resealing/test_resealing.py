"""All that one key sealed comes under the next, also after a kill; then the old key can go."""

import dataclasses
import itertools
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text
from structlog.testing import capture_logs

from app import ids
from app.core.erasure import moving
from app.core.master_keys import resealing
from app.core.master_keys.resealing import SEALED_COLUMNS
from app.core.verification import alerts
from app.core.webhooks import webhook_secrets
from app.core.webhooks.webhook_secrets import Secret
from app.lib.crypto import webhook_signing
from app.lib.crypto.sealing import MasterKeys
from jobs.actors import ticks
from tests.jobs.resealing.sealed import check_all_works, deliver_one, fill
from tests.jobs.resealing.sites import A_ID, B_ID, DROPPABLE, A, B, Site
from tests.support.callers.api import Api
from tests.support.callers.making import make_record
from tests.support.evidence.chains import BROKEN_HEADS
from tests.support.evidence.objects import move
from tests.support.faults import LONG_ENOUGH, until


@pytest.mark.parametrize("in_objects", [False, True])
def test_everything_comes_under_the_new_key_though_killed_and_the_old_one_can_be_dropped(
    site: Site, tmp_path: Path, in_objects: bool
) -> None:
    if in_objects:
        site.settings = dataclasses.replace(site.settings, blob_url=f"file://{tmp_path}/objects")
    known = fill(site, everywhere=True)
    if in_objects:
        with site.worker(A) as worker:
            move(worker, moving.OBJECTS)
        assert site.scalar("SELECT count(*) FROM bundles WHERE bytes IS NOT NULL") == 0
    before = site.status(B, A).seals
    assert set(before) == {A_ID}
    lacking = {str(place) for place in set(SEALED_COLUMNS) - set(before[A_ID])}
    # Segments are the same, and take five hundred entries each.
    assert lacking == {"audit_segments.bytes"}, "the test has something in every other column"
    kill_in_the_middle(site)
    halfway = site.status(B, A)
    assert 0 < halfway.seals[B_ID].total() < before[A_ID].total()
    assert halfway.seals[A_ID] + halfway.seals[B_ID] == before[A_ID]
    check_all_works(site, known, B, A)

    assert site.reseal(B, A).unopened == 0
    site.later()
    after = site.status(B, A)
    assert set(after.seals) == {B_ID}
    assert f"{A_ID}: {DROPPABLE}" in list(after.lines())
    check_all_works(site, known, B)


def kill_in_the_middle(site: Site) -> None:
    """Kill a process in a transaction that has changed a row and waits for another's."""
    with site.owner.connect() as holding:
        holding.execute(text("SET LOCAL app.every_tenant = 'on'"))
        last = "SELECT record_id FROM bundles ORDER BY record_id DESC LIMIT 1 OFFSET 1"
        holding.execute(text(f"SELECT FROM bundles WHERE record_id = ({last}) FOR UPDATE"))
        with subprocess.Popen(
            [sys.executable, "-m", "tests.jobs.resealing.reseal_process"],
            env=site.environ(B, A),
        ) as process:
            try:
                until(lambda: site.waits_for_a_row("%UPDATE bundles%"), seconds=60)
            finally:
                process.kill()
    until(lambda: not site.waits_for_a_row("%"))


def test_a_second_run_changes_nothing_and_leaves_no_entry(site: Site) -> None:
    fill(site)
    first = site.reseal(B, A)
    assert first.resealed == site.status(B, A).seals[B_ID].total()
    assert (first.tenants, site.entries()) == ({site.tenant.id}, 1)
    seals = "SELECT md5(string_agg(bytes::text, '' ORDER BY record_id)) FROM bundles"
    before = site.scalar(seals)
    assert site.reseal(B, A) == resealing.Resealed()
    assert site.scalar(seals) == before
    assert site.entries() == 1


def test_the_clock_seals_anew_once_no_process_has_the_old_key_in_front(site: Site) -> None:
    fill(site)
    with site.worker(B, A) as worker:
        ticks.reseal(worker)
        assert A_ID in site.status(B, A).seals
        site.later()
        ticks.reseal(worker)
        assert set(site.status(B, A).seals) == {B_ID}
        with capture_logs() as said:
            ticks.reseal(worker)
    assert said == []


def test_what_does_not_open_is_left_counted_and_named(site: Site) -> None:
    known = fill(site)
    site.execute("UPDATE webhooks SET sealed_secrets = set_byte(sealed_secrets, 40, 0)")
    site.execute("UPDATE webhooks SET sealed_secrets = set_byte(sealed_secrets, 41, 0)")
    before = site.scalar("SELECT sealed_secrets FROM webhooks")
    with capture_logs() as said:
        assert site.reseal(B, A).unopened == 1
    (line,) = [line for line in said if line["event"] == "unsealing_failed"]
    assert (line["place"], line["count"]) == ("webhooks.sealed_secrets", 1)
    assert line["first"]["key"] == [str(site.tenant.id), str(known.webhook)]
    assert site.scalar("SELECT sealed_secrets FROM webhooks") == before
    assert [str(place) for place in site.status(B, A).seals[A_ID]] == ["webhooks.sealed_secrets"]


def test_where_the_key_is_missing_webhooks_show_their_host_alone(site: Site) -> None:
    wanted = {"url": site.receiver.url("/t0k3n"), "headers": {"Authorization": "Bearer abc"}}
    with site.api(A) as api:
        assert api.post("/v1/webhooks", wanted).status_code == 201
    with site.api(B) as api:
        (shown,) = api.get("/v1/webhooks").json["data"]
    assert (shown["url"], shown["headers"]) == (site.receiver.url("/***"), None)


@pytest.mark.parametrize("damage", BROKEN_HEADS.values(), ids=BROKEN_HEADS.keys())
@pytest.mark.toolbox
def test_a_broken_audit_chain_keeps_nothing_from_being_sealed_anew(site: Site, damage: str) -> None:
    fill(site)
    with site.owner.begin() as connection:
        assert connection.execute(text(damage), {"tenant": site.tenant.id}).rowcount == 1
    with capture_logs() as said:
        assert site.reseal(B, A).unopened == 0
    assert set(site.status(B, A).seals) == {B_ID}
    (line,) = [line for line in said if line["event"] == "audit_chain_broken"]
    assert line["tenant_id"] == ids.text("ten", site.tenant.id)
    assert site.entries() == 0
    with site.worker(B, A) as worker, worker.database.across_tenants() as session:
        assert alerts.open_breaks(session) == {"chains": "1 broken"}


@pytest.mark.parametrize("writer", [(B, A), (A, B)], ids=["with the new key", "with the old one"])
def test_who_changes_a_row_meanwhile_keeps_the_last_word(
    site: Site, writer: tuple[str, str]
) -> None:
    known = fill(site)
    fresh = webhook_signing.new_secret()
    sealed = webhook_secrets.seal_secrets(
        MasterKeys.parse(",".join(writer)), site.tenant.id, known.webhook, [Secret(fresh)]
    )
    with ThreadPoolExecutor(1) as pool:
        with site.owner.begin() as connection:
            connection.execute(text("SET LOCAL app.every_tenant = 'on'"))
            connection.execute(text("UPDATE webhooks SET sealed_secrets = :s"), {"s": sealed})
            resealed = pool.submit(site.reseal, B, A)
            until(lambda: site.waits_for_a_row("UPDATE webhooks%"))
        resealed.result(timeout=LONG_ENOUGH)
    known.secrets = [fresh]
    # What a process with the old order sealed stays under it, is told, and comes with the next run.
    under_a = [str(place) for place in site.status(B, A).seals.get(A_ID, ())]
    assert under_a == ([] if writer == (B, A) else ["webhooks.sealed_secrets"])
    site.reseal(B, A)
    site.later()
    assert set(site.status(B, A).seals) == {B_ID}
    check_all_works(site, known, B)


def test_it_runs_beside_processes_that_seal_under_either_key(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = fill(site)
    monkeypatch.setattr(resealing, "MOST_ROWS", 2)

    def write(api: Api) -> list[dict[str, Any]]:
        made = []
        for number in range(15):
            made.append(make_record(api, known.session))
            api.post("/v1/agents", {"name": "n"}, headers={"Idempotency-Key": f"{number}"})
            path = f"/v1/webhooks/{ids.text('whk', known.webhook)}/rotate-secret"
            assert api.post(path, {"overlap_seconds": 0}).status_code == 200
        return made

    # Made one after the other: CPython 3.11 fails at times where two threads compile at once
    # (python/cpython#106905), and werkzeug compiles its rules.
    with site.api(A, B) as old, site.api(B, A) as new, ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(write, api) for api in (old, new)]
        while not all(each.done() for each in writers):
            site.reseal(B, A)
        written = [record for each in writers for record in each.result()]
    assert site.reseal(B, A).unopened == 0
    assert set(site.status(B, A).seals) == {B_ID}
    with site.api(B) as api, site.worker(B) as worker:
        for record in written:
            assert api.get(f"/v1/records/{record['id']}/bundle").status_code == 200
        path = f"/v1/webhooks/{ids.text('whk', known.webhook)}/rotate-secret"
        known.secrets = [api.post(path, {"overlap_seconds": 0}).json["secret"]]
        deliver_one(site, known, api, worker)


def test_a_transaction_seals_a_bounded_number_of_bytes_and_at_least_one_row(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(site)
    monkeypatch.setattr(resealing, "MOST_BYTES", 1)
    changed: list[int] = []
    with site.database() as database:
        event.listen(database.engine, "checkin", lambda *_: changed.append(_under(site, B_ID)))
        done = resealing.reseal(database, MasterKeys.parse(f"{B},{A}"), force=True)
    steps = [now - before for before, now in itertools.pairwise(changed)]
    assert max(steps) == 1
    assert done.resealed == _under(site, B_ID)


def _under(site: Site, key_id: str) -> int:
    return sum(
        site.scalar(
            f"SELECT count(*) FROM {place.table}"
            f" WHERE encode(substr({place.column}, 2, 4), 'hex') = '{key_id}'"
        )
        for place in SEALED_COLUMNS
    )
