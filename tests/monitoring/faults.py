"""What happens to a service, and the alerts that fire for it: each by a real fault."""

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from app import heartbeats
from app.core.jobs import job_queue
from app.core.master_keys import key_registry
from app.lib.crypto.sealing import MasterKeys
from jobs.durable.run_job import work_on
from tests.jobs.digesting import Tenant, desk_at
from tests.monitoring import log_faults, trace_faults
from tests.support.callers.making import make_record, make_session, record_of
from tests.support.faults import until
from tests.support.servers.mail import Mood, serving
from tests.support.servers.receivers import Receiver, http_answer
from tests.support.workers.monitored import Monitored
from tests.support.workers.worlds import take_turn

_DUE = "next_attempt_at = clock_timestamp() - interval '2 minutes'"
_GIBIBYTE = 1 << 30
# Of a request: longer than what an alert calls slow, and shorter than its patience.
_WAITED_SECONDS = 3.0


@dataclass(frozen=True)
class Fault:
    """What happens, and every alert that fires then; `sweeps` is false where the sweep stops."""

    happens: Callable[[Monitored], object]
    fires: frozenset[str]
    sweeps: bool = True


# A slow machine fires these by itself, and a large process of tests `ProcessMemoryHigh`: they are
# looked for where a fault must fire them.
TIMED = frozenset(
    {
        *("DeliveriesLate", "FirstAttemptsLate", "JobsLate", "PoolExhausted", "WebSlow"),
        *("ProcessMemoryHigh", "WebErrors"),
    }
)


def part_down(service: Monitored) -> None:
    client = service.valkey.client
    names = [name for name in client.smembers("processes") if name.startswith(b"process:worker:")]
    client.delete(*names)


def disk_full(service: Monitored) -> None:
    """A write ends as on a full disk; here only that of the row by which writes are proved."""
    service.run(
        "CREATE OR REPLACE FUNCTION disk_full() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN RAISE 'could not extend file' USING ERRCODE = 'disk_full'; END$$"
    )
    service.run(
        "CREATE TRIGGER disk_full BEFORE UPDATE ON master_keys"
        " FOR EACH STATEMENT EXECUTE FUNCTION disk_full()"
    )


def no_scrape(service: Monitored) -> None:
    service.token = "another"


def sweep_stopped(_: Monitored) -> None:
    """The scheduler rings no worker: `Fault.sweeps`."""


def key_dropped(service: Monitored) -> None:
    with service.database.across_tenants() as session:
        key_registry.announce(session, MasterKeys([bytes(32)]))


def left_behind(service: Monitored) -> None:
    """A worker of the release before still runs elsewhere."""
    old = heartbeats.Process("worker", host="elsewhere", version="0.0.9")
    heartbeats.report(service.valkey.client, old)
    service.keep_reports()


def memory_taken(service: Monitored) -> None:
    held = b"x" * _GIBIBYTE
    service.report()
    assert len(held) == _GIBIBYTE


def workers_too_few(service: Monitored) -> None:
    world = service.world()
    world.webhook("http://127.0.0.1:9/")
    world.emit()
    service.run(f"UPDATE open_deliveries SET {_DUE}")
    # As the sweep has made it, and no worker has come since.
    service.run("UPDATE lanes SET due_at = clock_timestamp() - interval '2 minutes'")


def sent_late(service: Monitored) -> None:
    world = service.world()
    with Receiver() as receiver:
        webhook = world.webhook(receiver.url())
        world.emit()
        service.run("UPDATE open_deliveries SET created_at = created_at - interval '2 minutes'")
        take_turn(service.runtime, world.tenant_id, webhook)


def receivers_fail(service: Monitored) -> None:
    """Five receivers are away, and each is tried ten times."""
    world = service.world()
    for _ in range(5):
        world.webhook("http://127.0.0.1:9/")
    world.emit(10)

    def failed_enough() -> bool:
        for row in world.rows("SELECT webhook_id FROM lanes WHERE consecutive_failures < 10"):
            service.run(
                "UPDATE lanes SET paused_until = NULL, due_at = clock_timestamp()"
                " WHERE consecutive_failures < 10"
            )
            service.run(f"UPDATE open_deliveries SET {_DUE}")
            take_turn(service.runtime, world.tenant_id, row["webhook_id"])
        return bool(service.value("SELECT min(consecutive_failures) >= 10 FROM lanes"))

    until(failed_enough)


def refusing(service: Monitored) -> None:
    """A receiver answers 404 to everything, so no attempt fails for its endpoint's sake."""
    world = service.world()
    with Receiver(lambda _: http_answer(404)) as receiver:
        webhook = world.webhook(receiver.url())
        world.emit(10)

        def has_refused() -> bool:
            service.run(f"UPDATE open_deliveries SET {_DUE}")
            take_turn(service.runtime, world.tenant_id, webhook)
            return bool(service.value("SELECT unsuccessful_deliveries >= 10 FROM lanes"))

        until(has_refused)
    assert service.value("SELECT failing_since IS NULL FROM lanes")


def receiver_gone(service: Monitored) -> None:
    world = service.world()
    with Receiver(lambda _: http_answer(410)) as receiver:
        webhook = world.webhook(receiver.url())
        world.emit()
        take_turn(service.runtime, world.tenant_id, webhook)
        until(lambda: service.value("SELECT status FROM webhooks") == "disabled")


def worker_killed(service: Monitored) -> None:
    """A worker died with a delivery, and another takes it over."""
    world = service.world()
    with Receiver() as receiver:
        webhook = world.webhook(receiver.url())
        world.emit()
        service.run(
            "UPDATE open_deliveries SET status = 'sending', claim_no = 1,"
            " lease_until = clock_timestamp()"
        )
        take_turn(service.runtime, world.tenant_id, webhook)


def job_waits(service: Monitored) -> None:
    tenant = service.tenant()
    with service.database.transaction(tenant.id) as session:
        job_queue.enqueue(session, tenant.id, kind="bulk_replay", args={})
    service.run("UPDATE jobs SET run_at = run_at - interval '2 minutes'")


def rules_wait(service: Monitored) -> None:
    api = service.api(service.tenant().root_key)
    rule = {"name": "n", "on": "record", "when": "true", "severity": "low", "title": "t"}
    assert api.post("/v1/rules", rule | {"enabled": True}).status_code == 201
    make_record(api, make_session(api)["id"])
    service.run("UPDATE rule_work SET at = at - interval '2 minutes'")


def job_fails(service: Monitored) -> None:
    """A job has arguments that its step cannot read, until it gives up."""
    tenant = service.tenant()
    with service.database.transaction(tenant.id) as session:
        job = job_queue.enqueue(session, tenant.id, kind="bulk_replay", args={})

    def is_dead() -> bool:
        service.run("UPDATE jobs SET run_at = clock_timestamp(), locked_until = NULL")
        work_on(service.runtime, tenant.id, job.id)
        return bool(service.value("SELECT status FROM jobs") == "dead")

    until(is_dead)


def _send_digest(service: Monitored, mood: Mood, hours: float = 0) -> None:
    """Send a digest to a server in this mood, and let hours pass."""
    with serving() as postbox, desk_at(service.settings, postbox) as desk:
        tenant = Tenant(desk)
        tenant.set_address()
        tenant.find()
        desk.wait(1)
        postbox.taken(mood)
        desk.send()
        desk.wait(hours)
        until(desk.runtime.counters.work)


def mail_put_off(service: Monitored) -> None:
    """It stays open for hours, and so does its job."""
    _send_digest(service, Mood.RECIPIENT_LATER, hours=3)


def sender_refused(service: Monitored) -> None:
    _send_digest(service, Mood.BAD_SENDER)


def recipient_refused(service: Monitored) -> None:
    _send_digest(service, Mood.NO_RECIPIENT)


def fault_inside(service: Monitored) -> None:
    key = service.tenant().root_key
    service.run("ALTER TABLE agents RENAME TO elsewhere")
    try:
        assert service.api(key).get("/v1/agents").status_code == 500
    finally:
        service.run("ALTER TABLE elsewhere RENAME TO agents")


def connections_taken(service: Monitored) -> None:
    """Every connection of the web process is in use, and a request waits for one."""
    web = service.services.database
    key = service.tenant().root_key

    def waited() -> bool:
        """Have a request wait; whether it did for over a second before it was answered."""
        began: list[float] = []
        answers: list[int] = []

        def ask() -> None:
            began.append(time.monotonic())
            answers.append(service.api(key).get("/v1/agents").status_code)

        request = threading.Thread(target=ask)
        with ExitStack() as held:
            for _ in range(service.settings.connections_of("web")):
                held.enter_context(web.across_tenants())
            request.start()
            until(lambda: answers or (began and time.monotonic() - began[0] > _WAITED_SECONDS))
        request.join()
        return answers == [200]

    until(waited)


def objects_stay(service: Monitored) -> None:
    """A bundle that was an object has expired, and no worker erases objects."""
    api = service.api(service.tenant().root_key)
    make_record(api, make_session(api)["id"])
    service.run("UPDATE bundles SET blob = record_id, bytes = NULL")
    service.run("DELETE FROM bundles")
    service.run("UPDATE dead_blobs SET due_at = clock_timestamp() - interval '2 hours'")


def heavy_callers(service: Monitored) -> None:
    api = service.api(service.tenant().root_key)
    session = make_session(api)
    with service.services.large.held("another"):
        large = record_of(session["id"], content={"text": "x" * (128 << 10)})
        assert api.post("/v1/records", large).status_code == 503


FAULTS = {
    each.happens.__name__: each
    for each in (
        Fault(no_scrape, frozenset({"NoMetrics"})),
        Fault(part_down, frozenset({"PartDown"})),
        Fault(disk_full, frozenset({"PartDown"})),
        Fault(sweep_stopped, frozenset({"SweepStopped"}), sweeps=False),
        Fault(key_dropped, frozenset({"MasterKeyMissing"})),
        Fault(left_behind, frozenset({"MixedReleases"})),
        Fault(memory_taken, frozenset({"ProcessMemoryHigh"})),
        Fault(workers_too_few, frozenset({"DeliveriesLate"})),
        Fault(sent_late, frozenset({"FirstAttemptsLate"})),
        Fault(receivers_fail, frozenset({"AttemptsFail", "ManyLanesPaused", "WebhookFails"})),
        Fault(refusing, frozenset({"AttemptsFail", "WebhookFails"})),
        Fault(receiver_gone, frozenset({"AttemptsFail", "WebhookDisabled"})),
        Fault(worker_killed, frozenset({"WorkersLost"})),
        Fault(job_waits, frozenset({"JobsLate"})),
        Fault(rules_wait, frozenset({"RulesLate"})),
        Fault(job_fails, frozenset({"JobDead", "ServiceFault"})),
        Fault(trace_faults.traces_wait, frozenset({"TracesLate"})),
        Fault(trace_faults.staging_full, frozenset({"StagingFull"})),
        Fault(trace_faults.trace_damaged, frozenset({"TracesFail"})),
        Fault(trace_faults.spans_rejected, frozenset({"SpansRejected"})),
        Fault(mail_put_off, frozenset({"DigestsLate", "DigestsRefused", "JobsLate"})),
        Fault(sender_refused, frozenset({"DigestsRefused", "MailRefused"})),
        Fault(recipient_refused, frozenset({"DigestsRefused", "RecipientRefused"})),
        Fault(log_faults.log_halted, frozenset({"LogHalted"})),
        Fault(log_faults.history_lost, frozenset({"HistoryRolledBack"})),
        Fault(log_faults.sequencer_stopped, frozenset({"LeavesWait"})),
        Fault(log_faults.quorum_away, frozenset({"CheckpointWaits"})),
        Fault(log_faults.anchoring_stopped, frozenset({"Unanchored"})),
        Fault(log_faults.forked, frozenset({"WitnessAlarm"})),
        Fault(log_faults.chain_rewritten, frozenset({"AuditChainBroken"})),
        Fault(log_faults.verification_stopped, frozenset({"AuditUnverified"})),
        Fault(log_faults.tile_changed, frozenset({"AuditChainBroken", "LogDamaged"})),
        Fault(fault_inside, frozenset({"WebErrors"})),
        Fault(connections_taken, frozenset({"PoolExhausted", "WebSlow"})),
        Fault(objects_stay, frozenset({"ObjectsNotErased"})),
        Fault(heavy_callers, frozenset({"WebErrors", "WebRefuses"})),
    )
}
