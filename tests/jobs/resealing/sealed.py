"""Seals in every place of the database, and the use of all that they hold."""

import dataclasses
from collections.abc import Mapping
from datetime import datetime, timedelta
from uuid import UUID

from app import ids
from app.clock import rfc3339
from app.core.log import generations, succession
from app.core.log.sequencer import Sequencer
from app.core.packs import subjects
from app.core.verification import alerts, daily
from app.database import database_now
from jobs.delivery.lane_run import LaneRun
from jobs.process.runtime import Runtime
from tests.jobs.resealing.sites import A, Site
from tests.support.callers.api import Api
from tests.support.callers.making import make_finding, make_record, make_session
from tests.support.database.storing import index_words
from tests.support.evidence.exporting import Exporter
from tests.support.evidence.packing import AT_ONCE, Packer

CHAIN = bytes(range(32))
ORIGIN = "resealed.test/log"


@dataclasses.dataclass
class Known:
    """What a caller knows of the service before its keys are rotated."""

    secrets: list[str]
    webhook: UUID
    session: str
    bundles: Mapping[str, bytes]
    packs: Mapping[str, bytes]
    key: str
    bundle_key: str
    verified: datetime | None


REPEATED = {"headers": {"Idempotency-Key": "once"}}
MINTED = {"name": "minted once", "role": "read"}


def fill(site: Site, records: int = 5, *, everywhere: bool = False) -> Known:
    """Have something sealed under A in every place; in files of exports and sessions if asked."""
    with site.api(A) as api, site.worker(A) as worker:
        keys = worker.settings.master_keys
        made = api.post("/v1/webhooks", {"url": site.receiver.url()}).json
        rotated = api.post(f"/v1/webhooks/{made['id']}/rotate-secret", {}).json
        session = make_session(api)["id"]
        log = Sequencer(worker.database, keys, ORIGIN, None)
        packer = Packer(lambda key=None: api, site.tenant, worker, log)
        written = [make_record(api, session) for _ in range(records)]
        log.run()
        # It makes the tenant's search key.
        assert index_words(worker.database, worker.settings, site.tenant.id) == (0, records)
        packs = {record["id"]: packer.built(record) for record in written[:2]}
        if everywhere:
            _pack_and_export(packer, Exporter(packer.api, site.tenant, worker, log, site.owner))
        bundles = {
            record["id"]: api.get(f"/v1/records/{record['id']}/bundle").data for record in written
        }
        key = api.post("/v1/keys", MINTED, **REPEATED).json["key"]
        succession.succeed(log, keys, force=True)
        with worker.database.across_tenants() as opened:
            alerts.report_unknown(opened, CHAIN, 1, 0)
            alerts.acknowledge(opened, keys, CHAIN)
            since = {"since": rfc3339(database_now(opened))}
            alerts.write_note(opened, keys, daily.KIND, since)
            verified = daily.unverified_since(opened, keys)
    webhook = ids.parse("whk", made["id"])
    assert webhook is not None
    bundle_key = written[0]["bundle"]["key_id"]
    secrets = [rotated["secret"], made["secret"]]
    return Known(secrets, webhook, session, bundles, packs, key, bundle_key, verified)


def _pack_and_export(packer: Packer, exporter: Exporter) -> None:
    """Have the pack of a session of its own, and the export of a time with nothing in it."""
    session = make_session(packer.api())["id"]
    exporter.records(1, session)
    exporter.seal(session)
    packer.api().get(f"/v1/sessions/{session}/evidence.zip", headers=AT_ONCE)
    packer.work(subjects.SESSION)
    now = exporter.now()
    exporter.made(now - timedelta(days=2), now - timedelta(days=1))


def check_all_works(site: Site, known: Known, *keys: str) -> None:
    """Use everything that was sealed, with these keys and no others."""
    with site.api(*keys) as api, site.worker(*keys) as worker:
        master_keys = worker.settings.master_keys
        for record, raw in known.bundles.items():
            assert api.get(f"/v1/records/{record}/bundle").data == raw
        for record, pack in known.packs.items():
            answer = api.get(f"/v1/records/{record}/evidence.zip", headers={"Prefer": "wait=0"})
            assert (answer.status_code, answer.data) == (200, pack)
        found = api.get("/v1/records?q=refunded").json["data"]
        assert {record["id"] for record in found} >= known.bundles.keys()
        again = api.post("/v1/keys", MINTED, **REPEATED)
        assert again.headers["Idempotent-Replayed"] == "true"
        assert again.json["key"] == known.key
        assert make_record(api, known.session)["bundle"]["key_id"] == known.bundle_key
        deliver_one(site, known, api, worker)
        log = Sequencer(worker.database, master_keys, ORIGIN, None)
        log.run()
        with worker.database.across_tenants() as session:
            newest = generations.newest(session)
            assert newest is not None
            generations.require_appointed(master_keys, newest)
            assert newest.trouble is None
            assert alerts.acknowledged(session, master_keys) == {CHAIN}
            assert daily.unverified_since(session, master_keys) == known.verified
        assert api.get("/v1/audit/verify").json["status"] == "intact"
        assert api.get("/readyz").json["parts"]["master_keys"] == "up"


def deliver_one(site: Site, known: Known, api: Api, worker: Runtime) -> None:
    """Have a finding delivered; every secret in force must have signed it."""
    from standardwebhooks.webhooks import Webhook

    site.receiver.requests.clear()
    make_finding(api, known.session)
    LaneRun(worker, site.tenant.id, known.webhook).run()
    assert site.receiver.requests
    for request in site.receiver.requests:
        for secret in known.secrets:
            Webhook(secret).verify(request.body, dict(request.headers))
