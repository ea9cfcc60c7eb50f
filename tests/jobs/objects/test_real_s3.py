"""The same with a real server of S3's protocol, by the client that is used in earnest."""

from pathlib import Path

import pytest
from sqlalchemy import Engine

from app.core.blobs import store
from app.core.erasure import moving
from app.core.log.sequencer import Sequencer
from app.ids import new
from app.settings import Settings
from tests.jobs.objects.worlds import world
from tests.support.callers.api import FreshTenant
from tests.support.evidence.objects import move, sweep, work_off
from tests.support.servers import seaweed
from tests.support.workers.expiring import keep_for

pytestmark = pytest.mark.toolbox


def test_the_way_in_packs_moving_sweeping_and_expiry(
    settings: Settings,
    tenant: FreshTenant,
    admin_engine: Engine,
    log: Sequencer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with (
        seaweed.serving(tmp_path / "weed", monkeypatch) as url,
        world(settings, tenant, admin_engine, log, url) as here,
    ):
        blobs = store.of(url)
        assert blobs is not None
        made = [here.record(content={"n": n}) for n in range(4)]
        here.log.run()
        raw = [here.bundle(each).data for each in made]
        pack = here.packer.built(made[0])
        first = list(blobs.names(""))
        assert len(first) > 4
        assert first == sorted(first)

        assert move(here.runtime, moving.DATABASE)["moved"] >= 5
        assert move(here.runtime, moving.OBJECTS)["moved"] >= 5
        assert [here.bundle(each).data for each in made] == raw
        assert here.packer.ask(made[0]).data == pack

        store.stow(blobs, [store.Item("bundles", tenant.id, new(), 0, b"\1" + bytes(40))])
        assert sweep(here.runtime) >= 1
        assert [here.bundle(each).data for each in made] == raw

        for each in made:
            here.expirer.age(each, days=3)
        keep_for(here.api(), 1)
        assert here.expirer.run() == {"expired": 4}
        # What moved before would stay for a day.
        here.rows("UPDATE dead_blobs SET due_at = clock_timestamp() RETURNING blob")
        assert work_off(here.runtime, tenant.id)["bundles"] >= 4
        assert [name for name in blobs.names("") if tenant.id.hex in name] == []
