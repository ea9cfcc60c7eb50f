"""The durable job that makes a period export, from settling to hashing.

Each step reads outside a transaction, and commits what it wrote with the cursor: after a kill the
next worker goes on behind the last part. docs/architecture.md has the phases.
"""

import json
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any
from uuid import UUID

from psycopg.rows import scalar_row
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core import signing_keys
from app.core.anchoring import evidence, heads, quorum
from app.core.anchoring.evidence import CheckpointCache
from app.core.audit import chain
from app.core.blobs.reading import Vanished
from app.core.callers import SYSTEM
from app.core.exports import parts, reading
from app.core.exports.parts import BEGIN, Turn, Written
from app.core.exports.reading import Place
from app.core.jobs import job_queue, job_rows
from app.core.jobs.steps import Errand, Failed, Step
from app.core.log import generations, publication, tile_rows
from app.core.log.publication import Published
from app.core.records.bundles import MIB
from app.core.signing_keys import Purpose
from app.database import Database, cursor, database_now
from app.errors import LogDamaged
from app.evidence import period_export
from app.evidence.period_export import Draft
from app.ledger import tiles
from app.ledger.merkle import Frontier, subtrees
from app.lib.crypto.sealing import CannotOpen
from app.models import Export, Job
from app.settings import VERSION, Settings

KIND = "period_export"
GRACE = timedelta(seconds=10)
"""A record may be signed this long before its transaction begins (`add_records`)."""

SLACK = (timedelta(seconds=15), timedelta(days=1), None)
"""How far in time a record is looked for from its leaf; if one was not found, farther: at last, in
the whole period (leaves that `log rebuild` mended have ids of its time)."""

A_STEP = 8_192
"""Leaves that one step reads."""

MOST_OTHERS, WHOLE_BY = 10_000, 2
"""Other leaves are written in full up to so many, or to so many times the records."""

# A checkpoint younger than the period comes within seconds, if the log grows at all.
_TRIES = 20

_SETTLED = "SELECT settled_before()"
_ANCHORED = "SELECT anchoring_enabled FROM tenants WHERE id = %s"
_BEHIND = """
SELECT min(size) FROM checkpoints
 WHERE generation = %s AND size > %s AND note IS NOT NULL AND published_at >= %s
"""
_BEFORE = """
SELECT size, published_at FROM checkpoints
 WHERE generation = %s AND size <= %s AND note IS NOT NULL AND published_at <= %s
 ORDER BY size DESC LIMIT 1
"""
_AT = "SELECT published_at FROM checkpoints WHERE generation = %s AND size = %s"
_NAMES = "SELECT id, name FROM agents WHERE tenant_id = %s AND id = ANY (%s)"
_STORED = "SELECT coalesce(sum(bytes), 0) FROM stored_records WHERE tenant_id = %s"
_GROW = """
UPDATE exports SET size = %s WHERE tenant_id = %s AND id = %s AND deleted_at IS NULL
"""
_SIGN = """
UPDATE exports SET records = %s, statement = %b, key_id = %s, signature = %b
 WHERE tenant_id = %s AND id = %s
"""
_MADE = """
UPDATE exports SET sha256 = %b, made_at = clock_timestamp() WHERE tenant_id = %s AND id = %s
"""
_RESTART = "DELETE FROM export_parts WHERE tenant_id = %s AND export_id = %s"


_DELETED = {"phase": "deleted"}


def order(session: Session, tenant_id: UUID, export_id: UUID) -> Job:
    """Enqueue the job that makes an export."""
    args = {"export_id": ids.text("exp", export_id)}
    return job_queue.enqueue(session, tenant_id, kind=KIND, args=args)


@dataclass(frozen=True)
class Builder:
    """Makes period exports for one worker process."""

    database: Database
    settings: Settings
    grace: timedelta = GRACE
    a_step: int = A_STEP

    def step(self, session: Session, tenant_id: UUID, job: Job) -> Step | Errand[Any]:
        """Do the next step of a job, outside the transaction that stores its outcome."""
        export_id = ids.parse("exp", job_rows.args_of(job)["export_id"])
        export = session.get(Export, (tenant_id, export_id))
        if export is None or export.deleted_at is not None:
            return Step(None, _DELETED)
        state = json.loads(job.cursor) if job.cursor else BEGIN
        turn = Turn(export, state)
        return Errand(
            lambda: self._talk(turn), lambda at_end, written: self._record(at_end, turn, written)
        )

    def _talk(self, turn: Turn) -> Written:
        phases = {
            "settling": self._settle,
            "counting": self._count,
            "choosing": self._choose,
            "listing": self._list,
            "hashing": self._hash,
        }
        try:
            written = phases[turn.state["phase"]](turn)
            return replace(written, stowed=parts.stow(self.settings, turn.place, written.parts))
        except LogDamaged as error:
            return Written(Failed(error.detail))
        except CannotOpen:
            return Written(Failed("MASTER_KEYS lacks the key that sealed what signs exports."))

    def _settle(self, turn: Turn) -> Written:
        """Wait until no transaction can add a record of the period."""
        with self.database.across_tenants() as session:
            settled = cursor(session, scalar_row).execute(_SETTLED).fetchone()
        if settled is None or settled <= turn.period.until + self.grace:
            return turn.wait()
        return turn.go("counting", records=0)

    def _count(self, turn: Turn) -> Written:
        """Count the next records; wait until the published log has all of them."""
        state = turn.state
        with self.database.transaction(turn.tenant_id) as session:
            last = publication.current(session)
            if last is None:
                return self._anchor(turn)
            if state.setdefault("generation", last.generation.number) != last.generation.number:
                return turn.restart()
            at = state.get("after")
            after = Place(datetime.fromisoformat(at[0]), UUID(hex=at[1])) if at else None
            found = reading.count(session, last.intact(), turn.period, after)
        if found.places is None:
            return turn.wait()
        if not found.places or found.last is None:
            return turn.go("choosing", tries=0)
        bounds = [*state.get("bounds", []), *found.places]
        return turn.go(
            "counting",
            records=state["records"] + len(found.places),
            after=[rfc3339(found.last.at), found.last.id.hex],
            bounds=[min(bounds), max(bounds)],
        )

    def _choose(self, turn: Turn) -> Written:
        """Choose the checkpoints before and behind the period, and write the first line.

        The export's own audit entry is anchored, so that the log grows behind the period.
        """
        state, period = turn.state, turn.period
        first, last_index = state.get("bounds", [None, -1])
        with self.database.transaction(turn.tenant_id) as session:
            last = publication.current(session)
            if last is None or last.generation.number != state["generation"]:
                return turn.restart()
            place = (last.generation.number, last_index, period.until)
            behind = cursor(session, scalar_row).execute(_BEHIND, place).fetchone()
            anchored = cursor(session, scalar_row).execute(_ANCHORED, (turn.tenant_id,)).fetchone()
            if behind is not None or not anchored or state["tries"] >= _TRIES:
                return self._begin(session, turn, last, first, behind or last.checkpoint.size)
        return self._anchor(turn)

    def _anchor(self, turn: Turn) -> Written:
        """Have the heads of audit chains anchored, and wait for the log to grow by them."""
        tries = turn.state.get("tries", 0)
        if tries == 0:
            with self.database.across_tenants() as session:
                heads.enqueue_due(session)
        return turn.wait(tries=tries + 1)

    def _begin(
        self, session: Session, turn: Turn, last: Published, first: int | None, behind: int
    ) -> Written:
        period, number = turn.period, last.generation.number
        others = (self.settings.witness_policy, self.settings.tsa_ca_file)
        if behind:
            better = evidence.Chooser(session, last, *others).best(behind - 1)
            # Evidence of much later would bring more leaves of others than it is worth.
            if better.published.checkpoint.size - behind <= MOST_OTHERS:
                behind = better.published.checkpoint.size
        at_most = behind if first is None else min(first, behind)
        place = (number, at_most, period.since)
        row = cursor(session).execute(_BEFORE, place).fetchone()
        begin, published_at = row or (0, None)
        wanted = list(subtrees(0, begin))
        held = tile_rows.read(session, last.generation, tiles.holding(wanted))
        read = tiles.reader(held.__getitem__)
        draft = Draft(Frontier(begin, [read(*each) for each in wanted]))
        about = {
            "id": ids.text("exp", turn.export.id),
            "tenant_id": ids.text("ten", turn.tenant_id),
            "since": rfc3339(period.since),
            "until": rfc3339(period.until),
            "agent_id": None if period.agent_id is None else ids.text("agt", period.agent_id),
        }
        line = draft.header(about, None if published_at is None else rfc3339(published_at))
        records = turn.state["records"]
        turn.state.update(
            size=behind,
            about=about,
            whole=behind - begin - records <= max(MOST_OTHERS, WHOLE_BY * records),
            slack=turn.state.get("slack", 0),
            bytes=0,
        )
        return turn.write("listing", draft, [line])

    def _list(self, turn: Turn) -> Written:
        """Write the lines of the next leaves."""
        state = turn.state
        draft, size = Draft.load(state["draft"]), state["size"]
        start = state.get("read", draft.at)
        if start >= size:
            return self._close(turn, draft)
        end = min(start + self.a_step, size)
        with self.database.transaction(turn.tenant_id) as session:
            generation = generations.newest(session)
            if generation is None or generation.number != state["generation"]:
                # The log was succeeded: its leaves have places in another one now.
                return turn.restart()
            slack = SLACK[state["slack"]]
            found = reading.stretch(session, generation, turn.period, (start, end), slack)
            gaps = None
            if not state["whole"]:
                gaps = reading.gaps(draft.at, found, end if end == size else None)
            wanted = [each for gap in (gaps or {}).items() for each in subtrees(*gap)]
            held = tile_rows.read(session, generation, tiles.holding(wanted))
        lines = reading.write_lines(draft, found, gaps, tiles.reader(held.__getitem__))
        return turn.write("listing", draft, lines, read=end)

    def _close(self, turn: Turn, draft: Draft) -> Written:
        """Sign what the lines come to, and write the last one.

        What is listed is held to what was counted first, and the tree to the checkpoint.
        """
        state, settings = turn.state, self.settings
        size = state["size"]
        if draft.totals.records != state["records"]:
            if state["slack"] + 1 < len(SLACK):
                return turn.restart(slack=state["slack"] + 1)
            raise LogDamaged(
                f"{state['records']} records were counted, and {draft.totals.records} leaves of the"
                f" log are of them. {publication.MENDED_BY}"
            )
        with self.database.transaction(turn.tenant_id) as session:
            generation = generations.numbered(session, state["generation"])
            found = None if generation is None else publication.at(session, generation, size)
            if generation is None or found is None:
                raise LogDamaged(f"The checkpoint at {size} is gone. {publication.MENDED_BY}")
            published = found.intact()
            if draft.log.root != published.checkpoint.root:
                raise LogDamaged(
                    f"The leaves give another root than was signed at {size}."
                    f" {publication.MENDED_BY}"
                )
            held = CheckpointCache(session, generation, settings.tsa_ca_file).get(size)
            if held is None:
                raise LogDamaged(f"The checkpoint at {size} does not hold. {publication.MENDED_BY}")
            key = signing_keys.current(session, settings.master_keys, Purpose.BUNDLE)
            at = cursor(session, scalar_row).execute(_AT, (generation.number, size)).fetchone()
            agents = [ids.parse("agt", each) for each in draft.totals.by_agent if each]
            rows = cursor(session).execute(_NAMES, (turn.tenant_id, agents)).fetchall()
            log = {
                "origin": generation.origin,
                "size": size,
                "root": published.checkpoint.root.hex(),
                "published_at": None if at is None else rfc3339(at),
            }
            about = {
                **state["about"],
                "made_at": rfc3339(database_now(session)),
                "release": VERSION,
                "key_id": key.public.id,
                "log": log,
            }
            names = {ids.text("agt", agent_id): name for agent_id, name in rows}
            stamp = held.timestamp
            beside = period_export.beside(
                public_key=key.public.pem,
                vkey=str(generation.verifier_key),
                checkpoint=published.note,
                cosignatures=quorum.presentable(settings.witness_policy, published, held.lines),
                timestamp=None if stamp is None else (stamp.time, stamp.response, stamp.chain),
            )
        statement = draft.statement(about, names)
        signature = key.sign(statement)
        line = draft.trailer(statement, signature, beside)
        signed = (draft.totals.records, statement, key.public.id, signature)
        return turn.write("hashing", draft, [line], signed=signed)

    def _hash(self, turn: Turn) -> Written:
        """Compute the SHA-256 of all parts, as they will be sent."""
        digest, size = sha256(), turn.state["bytes"]
        try:
            for part in parts.stream(self.database, self.settings, turn.place, 0, size):
                digest.update(part)
        except (Vanished, CannotOpen):
            return Written(Failed("A part of this export is not there any more."))
        return Written(Step(None, turn.progress("made")), digest=digest.digest())

    def _record(self, session: Session, turn: Turn, written: Written) -> Step | Failed:
        """Store what a step wrote; nothing for an export that was deleted meanwhile."""
        place = turn.place
        cur = cursor(session)
        size = turn.state.get("bytes", 0)
        if cur.execute(_GROW, (size, *place)).rowcount != 1:
            # Its objects are no rows' objects: they are swept.
            return Step(json.dumps(turn.state), _DELETED)
        if written.restart:
            cur.execute(_RESTART, place)
        if written.parts:
            # Exports leave a tenth of it to records.
            limit = self.settings.tenant_stored_mib * MIB * 9 // 10
            stored = cursor(session, scalar_row).execute(_STORED, place[:1]).fetchone() or 0
            if limit and stored + sum(len(each.content) for each in written.parts) > limit:
                return Failed(
                    "It would leave less than a tenth of the tenant's storage limit. Delete exports"
                    " that are no longer needed; the operator can raise TENANT_STORED_MIB.",
                    for_good=True,
                )
            parts.add(session, place, written.parts, written.stowed)
        if written.signed is not None:
            cur.execute(_SIGN, (*written.signed, *place))
        if written.digest is not None:
            self._finish(session, turn, written.digest)
        return written.step

    def _finish(self, session: Session, turn: Turn, digest: bytes) -> None:
        place = turn.place
        cursor(session).execute(_MADE, (digest, *place))
        export = session.get_one(Export, place, populate_existing=True)
        statement = export.statement or b""
        chain.append(
            session,
            turn.tenant_id,
            SYSTEM,
            "export.complete",
            target=("export", ids.text("exp", export.id)),
            details={
                "records": export.records,
                "size": export.size,
                "sha256": digest.hex(),
                "statement_sha256": sha256(statement).hexdigest(),
            },
        )
