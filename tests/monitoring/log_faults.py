"""What happens to the log, its anchors and the audit chains."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from app.core.anchoring import incidents
from app.core.anchoring.monitor import QuorumGate
from app.core.log.history import Mark
from app.core.log.sequencer import Sequencer
from app.errors import LogHalted
from app.ledger.policy import Policy
from tests.support.evidence.logs import FLIP, add_leaves
from tests.support.evidence.witnesses import Witness
from tests.support.secrets import MASTER_KEYS
from tests.support.workers.monitored import Monitored

_AGED = """
UPDATE log_leaves
   SET id = (lpad(to_hex(floor(extract(epoch FROM now()) - 3600)::bigint * 1000), 12, '0')
             || right(replace(id::text, '-', ''), 20))::uuid
"""


def log_halted(service: Monitored) -> None:
    """The head outside is lost."""
    add_leaves(service.database, 1)
    service.runtime.log.run()
    service.head.unlink()
    add_leaves(service.database, 1)
    with suppress(LogHalted):
        service.runtime.log.run()


def history_lost(service: Monitored) -> None:
    """Another database's mark lies outside."""
    outside = service.head.with_name(f"{service.head.name}.history")
    outside.write_bytes(Mark(10**9, uuid4(), datetime.now(UTC)).text)
    service.runtime.history.tick()


def sequencer_stopped(service: Monitored) -> None:
    add_leaves(service.database, 1)
    service.run(_AGED)


def quorum_away(service: Monitored) -> None:
    witness = Witness("witness.test/one")
    lines = f"witness one {witness.vkey} http://127.0.0.1:9/\nquorum one\n"
    gate = QuorumGate(Policy.parse(lines.encode()), timedelta(minutes=2))
    add_leaves(service.database, 1)
    settings = service.settings
    Sequencer(service.database, MASTER_KEYS, settings.log_origin, None, gate).run()
    service.run("UPDATE checkpoints SET signed_at = signed_at - interval '5 minutes'")


def anchoring_stopped(service: Monitored) -> None:
    service.tenant()
    service.run("UPDATE audit_entries SET at = at - interval '2 hours'")


def forked(service: Monitored) -> None:
    with service.database.across_tenants() as session:
        now = datetime.now(UTC)
        incidents.begin(session, "witness one", now, "another log of this name", alarm=True)


def chain_rewritten(service: Monitored) -> None:
    tenant = service.tenant()
    service.run("UPDATE audit_entries SET hash = sha256('another')")
    assert service.api(tenant.root_key).get("/v1/audit/verify").status_code == 409


def verification_stopped(service: Monitored) -> None:
    """As in a backup of the day before yesterday: nothing was verified since."""
    since = (datetime.now(UTC) - timedelta(hours=27)).isoformat()
    sealed = MASTER_KEYS.seal(b'{"since":"%s"}' % since.encode(), "sealed_notes/verify_audit")
    service.run("INSERT INTO sealed_notes VALUES ('verify_audit', :s)", s=sealed)


def tile_changed(service: Monitored) -> None:
    add_leaves(service.database, 3)
    service.runtime.log.run()
    service.run(f"{FLIP} WHERE level = 0")
    assert service.api().get("/v1/log/tile/0/000.p/3").status_code == 409
