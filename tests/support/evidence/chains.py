"""What tests of verified chains stand on: a tenant whose heads are in a log, and the one who owns
the database and everything in it."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, text

from app.core import tenants
from app.core.audit import chain
from app.core.callers import SYSTEM
from app.core.jobs import job_rows, leases, steps
from app.core.jobs.steps import Failed
from app.core.log.head_store import FileHead
from app.core.verification import alerts
from app.core.verification import daily as verification
from app.core.verification.published_log import Trust
from app.core.verification.verifier import Asked, Verifier
from app.database import Database
from app.errors import AuditChainBroken
from app.ledger import hash_chain
from app.ledger.hash_chain import Head
from app.lib import canonical_json
from app.models import Job
from app.settings import Settings
from tests.support.evidence.anchoring import anchor_heads
from tests.support.evidence.logs import FLIP, World, add_leaves
from tests.support.secrets import MASTER_KEYS

# What an append meets that no append left behind, by the statement of the database's owner.
BROKEN_HEADS = {
    "behind": "UPDATE audit_heads SET seq = seq - 1 WHERE tenant_id = :tenant",
    "gone": "DELETE FROM audit_heads WHERE tenant_id = :tenant",
    "below nothing": "UPDATE audit_heads SET seq = -7 WHERE tenant_id = :tenant",
    "beyond all numbers": "UPDATE audit_heads SET seq = 9223372036854775807"
    " WHERE tenant_id = :tenant",
}
# One bit of each entry bundle; once more puts it back.
FLIP_BUNDLES = f"{FLIP} WHERE level = -1"


@dataclass(frozen=True)
class Owner:
    """The database's owner, bound by no rule of ours; `:tenant` is the victim."""

    engine: Engine
    tenant_id: UUID

    def __call__(self, *statements: str, **values: Any) -> None:
        """Run SQL in one transaction; each statement changes something."""
        with self.engine.begin() as connection:
            for statement in statements:
                done = connection.execute(text(statement), {"tenant": self.tenant_id} | values)
                assert done.rowcount != 0

    def scalar(self, query: str, **values: Any) -> Any:
        """Look something up."""
        with self.engine.begin() as connection:
            return connection.scalar(text(query), {"tenant": self.tenant_id} | values)

    def rewrite(self, seq: int, **members: Any) -> bytes:
        """Change one entry's body, filed as it says, with the hash that fits; return that hash."""
        query = "SELECT body FROM audit_entries WHERE tenant_id = :tenant AND seq = :seq"
        fields = json.loads(self.scalar(query, seq=seq)) | members
        body = canonical_json.dumps(fields)
        self(
            "UPDATE audit_entries SET body = :body, hash = :hash, action = :action, actor = :actor,"
            " target = :target"
            " WHERE tenant_id = :tenant AND seq = :seq",
            seq=seq,
            body=body,
            hash=sha256(body).digest(),
            action=fields["action"],
            actor=fields["actor"]["id"],
            target=fields["target"]["id"],
        )
        return sha256(body).digest()

    def forge_tail(self, first: int, last: int) -> bytes:
        """Write the chain anew from one entry on, so that it agrees with itself; return its end."""
        digest = self.rewrite(first, details={"n": "forged"})
        for seq in range(first + 1, last + 1):
            digest = self.rewrite(seq, prev_hash=digest.hex())
        self("UPDATE audit_heads SET hash = :hash WHERE tenant_id = :tenant", hash=digest)
        return digest

    def lengthen(self, count: int) -> None:
        """Add as many good entries as the service could have, in one go."""
        head = "SELECT {} FROM audit_heads WHERE tenant_id = :tenant"
        seq, digest = (self.scalar(head.format(column)) for column in ("seq", "hash"))
        query = "SELECT body FROM audit_entries WHERE tenant_id = :tenant AND seq = :seq"
        fields = json.loads(self.scalar(query, seq=seq))
        with self.engine.begin() as connection:
            driver = connection.connection.driver_connection
            with driver.cursor().copy("COPY audit_entries FROM STDIN") as copy:  # type: ignore[union-attr]
                for number in range(seq + 1, seq + 1 + count):
                    body = hash_chain.entry_bytes(
                        fields | {"seq": number, "prev_hash": digest.hex()}
                    )
                    digest = sha256(body).digest()
                    named = (fields["actor"]["id"], fields["target"]["id"])
                    filed = (fields["action"], fields["at"], *named, fields["outcome"])
                    copy.write_row((self.tenant_id, number, body, digest, *filed))
        self(
            "UPDATE audit_heads SET seq = :seq, hash = :hash WHERE tenant_id = :tenant",
            seq=seq + count,
            hash=digest,
        )

    def cut(self, last: int) -> None:
        """Cut the chain behind one entry, its head too."""
        self(
            "DELETE FROM audit_entries WHERE tenant_id = :tenant AND seq > :last",
            "UPDATE audit_heads SET seq = :last, hash = (SELECT hash FROM audit_entries"
            " WHERE tenant_id = :tenant AND seq = :last) WHERE tenant_id = :tenant",
            last=last,
        )


@dataclass(frozen=True)
class Place:
    """A database with a log, a tenant in it, and its verifier."""

    world: World
    verifier: Verifier
    owner: Owner
    tenant_id: UUID

    def append(self, times: int = 1) -> None:
        """Append entries to the tenant's chain."""
        for number in range(times):
            with self.world.database.transaction(self.tenant_id) as session:
                target, details = ("test", str(number)), {"n": number}
                chain.append(
                    session, self.tenant_id, SYSTEM, "test.do", target=target, details=details
                )

    def anchor(self) -> None:
        """Anchor every chain's head, and have the log publish it."""
        anchor(self.world)
        self.world.sequencer().run()

    def verify(self, **asked: Any) -> dict[str, Any]:
        """Verify the tenant's chain."""
        return self.verifier.verify(self.tenant_id, Asked(**asked))

    def broken(self, **asked: Any) -> tuple[int, str]:
        """Verify a chain that is broken; return where and how."""
        with pytest.raises(AuditChainBroken) as caught:
            self.verify(**asked)
        report = caught.value.report
        assert report["expected"] or report["found"]
        return int(str(report["seq"])), str(report["reason"])

    def head(self) -> Head:
        """Return the chain's head."""
        return Head(**self.verify()["head"])

    def events(self) -> Sequence[str]:
        """Return the payloads of the events that told of breaks."""
        with self.owner.engine.begin() as connection:
            return list(
                connection.scalars(
                    text(
                        "SELECT convert_from(payload, 'UTF8') FROM events"
                        " WHERE tenant_id = :tenant AND type = 'audit.chain_broken' ORDER BY id"
                    ),
                    {"tenant": self.tenant_id},
                )
            )


def anchor(world: World) -> None:
    """Anchor every chain's head as the worker does; the leaves wait for the log."""
    anchor_heads(world.database)


def done(place: Place, job: Job) -> Job:
    """Run a job as a worker does; return it as it ended."""
    while True:
        with place.world.database.across_tenants() as session:
            claimed = leases.claim(session, job.tenant_id, job.id)
            if claimed is None:
                return job_rows.get(session, job.tenant_id, job.id)
            errand = verification.job_step(place.verifier, session, job.tenant_id, claimed)
        said = errand.talk()
        with place.world.database.across_tenants() as session:
            ended = errand.record(session, said)
            if isinstance(ended, Failed):
                steps.fail(session, claimed, ended.error, for_good=ended.for_good)
            else:
                steps.advance(session, claimed, ended)


def daily_run(place: Place) -> dict[str, Any]:
    """Verify every chain as the worker does each day; return what it shows of that."""
    with place.world.database.across_tenants() as session:
        job = verification.enqueue_daily(session)
    ended = done(place, job)
    assert ended.status == "succeeded", ended.error
    return dict(json.loads(ended.progress or "{}"))


def standing(place: Place) -> str | None:
    """Return what operators are told of breaks."""
    with place.world.database.across_tenants() as session:
        found = alerts.open_breaks(session)
    if alerts.LOG in found:
        found[alerts.LOG] = f"not verified: {found[alerts.LOG]}"
    return "; ".join(found.values()) or None


# What attacks change, and what comes of being found.
_TABLES = (
    "tenants",
    "audit_heads",
    "audit_entries",
    "audit_anchors",
    "audit_breaks",
    "signing_keys",
    "log_generations",
    "log_leaves",
    "log_tiles",
    "checkpoints",
    "checkpoint_timestamps",
    "checkpoint_cosignatures",
    "stored_events",
    "open_deliveries",
    "ended_deliveries",
    "jobs",
    "sealed_notes",
)


class Saved:
    """A database's rows and the head outside, as they are now, to go back to."""

    def __init__(self, engine: Engine, head: Path) -> None:
        self._engine = engine
        self._head = head
        self._kept = head.read_bytes()
        self._back = ";".join(
            f"DELETE FROM {table}; INSERT INTO {table} SELECT * FROM saved.{table}"
            for table in _TABLES
        )
        with engine.begin() as connection:
            connection.execute(text("CREATE SCHEMA saved"))
            for table in _TABLES:
                connection.execute(text(f"CREATE TABLE saved.{table} AS SELECT * FROM {table}"))

    def restore(self) -> None:
        """Put everything back."""
        self._head.write_bytes(self._kept)
        with self._engine.begin() as connection:
            connection.execute(text("SET LOCAL session_replication_role = replica"))
            connection.execute(text(self._back))


@contextmanager
def new_place(settings: Settings, engine: Engine, folder: Path) -> Iterator[Place]:
    """Have a tenant of twelve entries in an empty database of its own.

    The heads 5 and 9 are in a log of 302 leaves.
    """
    database = Database(settings.database_url, application="tests")
    world = World(database, settings.master_keys, FileHead(folder / "head"))
    tenant_id, _ = tenants.create(database, MASTER_KEYS, "the victim")
    verifier = Verifier(database, settings.master_keys, world.store, Trust())
    place = Place(world, verifier, Owner(engine, tenant_id), tenant_id)
    place.append(3)
    place.anchor()
    place.append(4)
    add_leaves(database, 300)
    place.anchor()
    place.append(3)
    yield place
    database.close()
