"""What tests of anchoring stand on: a log, a worker's runtime, and tenants whose chains grow."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID

from sqlalchemy import Engine, text

from app.core import tenants
from app.core.anchoring import heads, incidents
from app.core.anchoring.anchors import AnchorReader
from app.core.anchoring.evidence import Chooser, Evidence
from app.core.audit import chain
from app.core.callers import OPERATOR
from app.database import Database
from app.evidence import timestamps
from app.evidence.timestamps import read_certificates
from app.ledger.notes import Note, Signature, VerifierKey
from app.ledger.policy import Policy
from app.models import NO_TENANT, AnchoringTrouble, Job
from dev.tsa import TimestampAuthority
from jobs.actors import ticks
from jobs.durable.run_job import work_on
from jobs.process.runtime import Runtime
from tests.support.database.databases import execute, scalar
from tests.support.evidence.logs import World, add_leaves, new_world
from tests.support.evidence.witnesses import Witness
from tests.support.secrets import MASTER_KEYS
from tests.support.servers.receivers import Listener, Receiver, Request


@dataclass
class Place:
    """A service that anchors: the clock's ticks happen when a test says so."""

    world: World
    runtime: Runtime
    owner: Engine
    head: Path

    @property
    def database(self) -> Database:
        return self.runtime.database

    def set(self, **settings: Any) -> None:
        """Change settings, as a restarted worker has them."""
        self.runtime = replace(self.runtime, settings=replace(self.runtime.settings, **settings))

    def stamped_by(self, url: str, ca_file: Path) -> None:
        """Name an authority."""
        self.set(tsa_url=url, tsa_ca_file=read_certificates(ca_file.read_bytes()))

    def tenant(self) -> UUID:
        """Return a new tenant: its chain has two entries."""
        return tenants.create(self.database, MASTER_KEYS, "anchored")[0]

    def append(self, tenant_id: UUID) -> None:
        """Add an entry to a tenant's chain."""
        with self.database.transaction(tenant_id) as session:
            chain.append(session, tenant_id, OPERATOR, "test", target=("test", "1"))

    def anchor(self) -> None:
        """Do what the clock's `anchor_audit` asks for."""
        ticks.anchor_audit(self.runtime)
        self.work()

    def grow(self, leaves: int = 1) -> int:
        """Publish another checkpoint; return its size."""
        add_leaves(self.database, leaves)
        return self.publish()

    def publish(self) -> int:
        """Publish what waits; return the size."""
        self.world.sequencer().run()
        return self.world.published().checkpoint.size

    def stamp(self) -> None:
        """Do what the clock's `stamp_checkpoint` asks for."""
        ticks.stamp_checkpoint(self.runtime)
        self.work()

    def overdue(self) -> None:
        """Let so much time pass that the next tick tells what was not vouched for in it."""
        self.run("UPDATE checkpoints SET published_at = published_at - interval '26 minutes'")
        ticks.stamp_checkpoint(self.runtime)

    def work(self) -> None:
        """Run every job that is due."""
        for job in self.jobs():
            work_on(self.runtime, NO_TENANT, job.id)

    def retry(self) -> None:
        """Let the time pass that jobs wait, and run them."""
        self.run("UPDATE jobs SET run_at = clock_timestamp() WHERE finished_at IS NULL")
        self.work()

    def jobs(self) -> list[Job]:
        with self.database.across_tenants() as session:
            return list(session.query(Job).order_by(Job.id))

    def troubles(self) -> list[AnchoringTrouble]:
        with self.database.across_tenants() as session:
            return list(incidents.rows(session))

    def anchors(self, tenant_id: UUID, policy: Policy | None = None) -> list[dict[str, Any]]:
        """Return a tenant's anchors as they are answered."""
        with self.database.transaction(tenant_id, snapshot=True) as session:
            trusted = self.runtime.settings.tsa_ca_file
            reader = AnchorReader(session, tenant_id, policy, MASTER_KEYS, trusted)
            return [reader.represent(each) for each in reader.rows(None, 200)]

    def chosen(self, index: int, policy: Policy | None = None) -> Evidence:
        """Return the evidence that is chosen for a leaf, as the database has it now."""
        with self.database.across_tenants(snapshot=True) as session:
            last, trusted = self.world.published(), self.runtime.settings.tsa_ca_file
            return Chooser(session, last, policy, trusted).best(index)

    def chosen_size(self, index: int, policy: Policy | None = None) -> int:
        """Return the size of the checkpoint that is chosen for a leaf."""
        return self.chosen(index, policy).published.checkpoint.size

    def stamps(self) -> list[Any]:
        """Return the rows of timestamps, in the log's order."""
        query = "SELECT * FROM checkpoint_timestamps ORDER BY generation, size"
        with self.owner.connect() as connection:
            return list(connection.execute(text(query)).all())

    def key(self) -> VerifierKey:
        return self.world.published().generation.verifier_key

    def run(self, sql: str, **values: Any) -> None:
        """Do something to the database as its owner."""
        execute(self.owner, sql, **values)

    def scalar(self, query: str, **values: Any) -> Any:
        """Look something up in the database as its owner."""
        return scalar(self.owner, query, **values)

    def count(self, table: str) -> int:
        return int(self.scalar(f"SELECT count(*) FROM {table}"))

    def published_at(self, size: int) -> Any:
        """Return when the checkpoint of this size was published."""
        return self.scalar("SELECT published_at FROM checkpoints WHERE size = :size", size=size)


def anchor_heads(database: Database) -> None:
    """Anchor every head, in as many steps as it takes: other tests leave many that are due."""
    job = Job(cursor=None, progress=None)
    while True:
        with database.across_tenants() as session:
            job.cursor = heads.step(MASTER_KEYS, session, NO_TENANT, job).cursor
        if job.cursor is None:
            return


_NEWEST = """
SELECT generation, size, note FROM checkpoints WHERE note IS NOT NULL AND size <= :size
 ORDER BY generation DESC, size DESC LIMIT 1
"""
_STAMP = """
INSERT INTO checkpoint_timestamps (generation, size, response, tsa_chain)
VALUES (:generation, :size, :response, :chain)
"""


def put_stamp(
    owner: Engine, authority: TimestampAuthority, size: int = 1 << 40, data: bytes | None = None
) -> bytes:
    """Put a stamp of the newest checkpoint up to `size` into its row; return the response.

    With `data` it is a stamp of that, in the same row.
    """
    trusted = read_certificates(authority.ca_file.read_bytes())
    with owner.begin() as connection:
        row = connection.execute(text(_NEWEST), {"size": size}).one()
        stamped = row.note if data is None else data
        asked = timestamps.request(stamped)
        made = timestamps.check(authority.reply(asked.as_bytes()), asked, stamped, trusted)
        values = {"response": made.response, "chain": made.chain}
        place = {"generation": row.generation, "size": row.size}
        connection.execute(text(_STAMP), place | values)
    return made.response


_COSIGN = """
INSERT INTO checkpoint_cosignatures (generation, size, name, key_hash, line)
VALUES (:generation, :size, :name, :hash, :line)
"""


def put_line(
    owner: Engine, witness: Witness, line: Signature | None = None, name: str | None = None
) -> None:
    """Put a witness's cosignature of the newest checkpoint into its row.

    Another line may be given for it, and another name to file it under.
    """
    with owner.begin() as connection:
        row = connection.execute(text(_NEWEST), {"size": 1 << 40}).one()
        put = line or witness.cosign(Note.parse(row.note).text)
        key = {"name": name or put.name, "hash": witness.vkey.key_hash, "line": str(put)}
        place = {"generation": row.generation, "size": row.size}
        connection.execute(text(_COSIGN), place | key)


@contextmanager
def new_place(runtime: Runtime, log_owner: Engine, folder: Path) -> Iterator[Place]:
    """Have a log that has not begun, and no tenant, in the database of this runtime."""
    with new_world(runtime.settings, log_owner, folder) as world:
        yield Place(world, runtime, log_owner, folder / "head")


class Witnessed:
    """A place with witnesses, and the policy that names them."""

    def __init__(self, place: Place, servers: ExitStack) -> None:
        self.place = place
        self.one, self.two = Witness("witness.test/one"), Witness("witness.test/two")
        self._servers = servers
        self.urls = {each.name: self.serve(each.answer) for each in (self.one, self.two)}
        place.grow(3)
        for each in (self.one, self.two):
            each.log = place.key()
        self.name()

    def serve(self, answer: Callable[[Request], bytes | None]) -> str:
        return self._servers.enter_context(Receiver(answer)).url("/prefix/")

    def listen(self, serve: Callable[[socket.socket], None]) -> str:
        return self._servers.enter_context(Listener(serve)).url("/prefix")

    def name(self, threshold: str = "all", extra: str = "") -> Policy:
        """Name both in the policy."""
        lines = [f"witness {n} {w.vkey} {self.urls[w.name]}" for n, w in self.named()]
        lines += [extra, f"group both {threshold} one two", "quorum both"]
        policy = Policy.parse("".join(f"{line}\n" for line in lines).encode())
        self.place.set(witness_policy=policy)
        return policy

    def named(self) -> list[tuple[str, Witness]]:
        return [("one", self.one), ("two", self.two)]

    def stored(self) -> list[tuple[int, str]]:
        with self.place.owner.connect() as connection:
            query = "SELECT size, name FROM checkpoint_cosignatures ORDER BY size, name"
            return [(row.size, row.name[-3:]) for row in connection.execute(text(query))]

    def part(self, witness: Witness) -> str:
        return f"witness {witness.name}+{witness.vkey.key_hash.hex()}"
