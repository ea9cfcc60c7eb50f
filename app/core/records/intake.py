"""New records, stored by one call of the database for all requests that arrive together.

Bundles are written, signed and sealed before; `add_records` (app/sql) does all the rest.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from app import ids
from app.core import idempotency
from app.core.blobs import store
from app.core.blobs.store import Stowed
from app.core.callers import Caller
from app.core.records import bundles, records
from app.core.records.signing import NO_SESSION, NewRecord, Signed, Signer
from app.database import Database, Tx, carried, cursor, rows_of, undone
from app.errors import (
    BAD_KEY,
    Conflict,
    IdempotencyKeyInUse,
    IdempotencyKeyReused,
    NotFound,
    ServiceError,
    SessionCompleted,
    StorageLimit,
    Unauthenticated,
    Unavailable,
)
from app.ledger import leaves, merkle
from app.lib.crypto.sealing import MasterKeys
from app.lib.group_commit import CROWD, GroupCommit
from app.settings import Settings

# A statement takes some milliseconds for so many bytes; a larger request goes alone.
_MOST_BYTES = 1024 * 1024
# What a record costs beside its bytes.
_WEIGHT = 4096
# How often a record is signed, if the key, the time or the agent's name changes meanwhile.
_TRIES = 3

# The types of the arrays of `add_records`, as `_row` fills them.
_TYPES = (
    "integer uuid uuid boolean boolean timestamptz uuid uuid uuid text text text text timestamptz"
    " bytea bigint text bytea timestamptz text bytea uuid uuid bytea bytea bytea bytea bytea"
)
_ADD = (
    "SELECT problems, replayed, moment, signing_key FROM add_records(%s, %s, %s, "
    + ", ".join(f"%b::{each}[]" for each in _TYPES.split())
    + ")"
).encode()


class Stored(NamedTuple):
    """A stored record, as JSON; `replayed` if an earlier request with its key stored it."""

    body: bytes
    replayed: bool = False


class OtherRefused(Conflict):
    """Another record of the same atomic request was refused."""


Result: TypeAlias = Stored | ServiceError
"""What became of a record."""

_OTHER = "Another record of this request was refused, and all are stored or none."


@dataclass(frozen=True)
class Asked:
    """New records of one request, with the Idempotency-Key of each that has one.

    Of an `atomic` request all are stored or none. What is an error already is passed on.
    """

    caller: Caller
    new: Sequence[NewRecord | ServiceError]
    repeats: Sequence[idempotency.Request | None]
    atomic: bool = False


@dataclass(frozen=True)
class Ready:
    """The signed records of one request, and the errors of those that could not be signed.

    `stowed` says, by record, where bundles lie that are in the object store.
    """

    asked: Asked
    signed: Sequence[Signed | ServiceError]
    stowed: Mapping[UUID, Stowed] = field(default_factory=dict)

    @property
    def to_store(self) -> bool:
        """Whether there is anything to store."""
        stored = [isinstance(each, Signed) for each in self.signed]
        return all(stored) if self.asked.atomic else any(stored)

    @property
    def weight(self) -> int:
        """What it costs to store, in bytes."""
        return sum(_WEIGHT + each.bundle_size for each in self.signed if isinstance(each, Signed))


class Intake:
    """Takes the records of a process's requests: those that arrive together go together."""

    def __init__(self, database: Database, settings: Settings) -> None:
        """Prepare; nothing runs until the first record."""
        self._database = database
        self._settings = settings
        self._blobs = store.of(settings.blob_url)
        self.signer = Signer(database, settings.master_keys)
        self._group = GroupCommit(
            self._run,
            most=_MOST_BYTES,
            on_loop=self._run_on_loop,
            weigh=lambda ready: ready.weight,
            crowd=CROWD,
            apart=undone,
        )

    def add(self, asked: Asked) -> list[Result]:
        """Sign and store records; return what became of each, in their order.

        The error of a caller that is not `confirmed`, and whose key is no longer valid, is that of
        each record. It is not known where there is nothing to store. Raises `Unavailable` where
        nothing is known of any record.
        """
        ready = self.prepare(asked)
        if not ready.to_store:
            return _unstored(ready)
        return self._until_signed(ready, self._group.submit(ready), None)

    async def join(self, asked: Asked) -> idempotency.Answered:
        """Do as `add` for one record, in a coroutine, and return the answer or raise the error.

        Raises `Again` for a record that is to be signed anew, which may take long. Signs at once,
        so the signer must know its session.
        """
        ready = self.sign(asked)
        if self._blobs is not None:
            loop = asyncio.get_running_loop()
            ready = await loop.run_in_executor(self._blobs.pool, self._stow, ready)
        (result,) = await self._group.join(ready) if ready.to_store else _unstored(ready)
        if isinstance(result, Again):
            self.signer.forget([each for each in ready.signed if isinstance(each, Signed)])
        return answer(result)

    def prepare(self, asked: Asked) -> Ready:
        """Sign records for `add_within`, and write their bundles into the object store, if any."""
        return self._stow(self.sign(asked))

    def _stow(self, ready: Ready) -> Ready:
        if self._blobs is None or not ready.to_store:
            return ready
        keys = self._settings.master_keys
        signed = [each for each in ready.signed if isinstance(each, Signed)]
        stowed = store.stow(self._blobs, [bundles.item(keys, each) for each in signed])
        return replace(
            ready, stowed={each.id: kept for each, kept in zip(signed, stowed, strict=True)}
        )

    def sign(self, asked: Asked, tx: Tx | None = None) -> Ready:
        """Sign records; within `tx` sessions are found that are not committed."""
        new = [each for each in asked.new if not isinstance(each, ServiceError)]
        signed = iter(self.signer.sign(asked.caller, new, tx) if new else ())
        return Ready(
            asked, [each if isinstance(each, ServiceError) else next(signed) for each in asked.new]
        )

    def add_within(self, tx: Tx, ready: Ready) -> list[Result]:
        """Store signed records in a transaction; else as `add`."""
        if not ready.to_store:
            return _unstored(ready)
        return self._until_signed(ready, self.store(tx, [ready], waits=True)[0], tx)

    def add_all(self, tx: Tx, caller: Caller, signed: Sequence[Signed]) -> None:
        """Store signed records in a transaction, all of them; raises the first one's error."""
        if not signed:
            return
        asked = Asked(caller, (), [None] * len(signed), atomic=True)
        for result in self.store(tx, [Ready(asked, signed)], waits=True)[0]:
            if isinstance(result, ServiceError):
                # What they were signed by may be no longer so.
                self.signer.forget(signed)
                raise result

    def _until_signed(self, ready: Ready, results: list[Result], tx: Tx | None) -> list[Result]:
        """Sign anew, and store, what was signed by what is no longer so or has to wait."""
        # Places are those of the first request, of which later ones are a part.
        asked = ready.asked
        for _ in range(_TRIES - 1):
            again = [place for place, each in enumerate(results) if isinstance(each, Again)]
            if not again:
                break
            self.signer.forget([each for each in ready.signed if isinstance(each, Signed)])
            places = range(len(results)) if asked.atomic else again
            ready = self.sign(
                replace(
                    asked,
                    new=[asked.new[place] for place in places],
                    repeats=[asked.repeats[place] for place in places],
                ),
                tx,
            )
            retried = self._retry(ready, tx)
            for place, each in zip(places, retried, strict=True):
                results[place] = each
        return results

    def _retry(self, ready: Ready, tx: Tx | None) -> list[Result]:
        if tx is not None:
            return self.store(tx, [ready], waits=True)[0]
        ready = self._stow(ready)
        try:
            with self._database.statement() as opened:
                return self.store(opened, [ready], waits=True)[0]
        except Unavailable as error:
            # Others of the request may be stored.
            return [error for _ in ready.signed]

    def _run(self, group: Sequence[Ready]) -> list[list[Result]]:
        with self._database.statement() as tx:
            return self.store(tx, group, waits=False)

    async def _run_on_loop(self, group: Sequence[Ready]) -> list[list[Result]]:
        rows, values = self._values(group, waits=False)
        async with self._database.awaited_statement() as tx:
            carried(tx, sum(each.weight for each in group))
            return self._results(group, rows, await rows_of(tx, _ADD, values))

    def store(self, tx: Tx, group: Sequence[Ready], *, waits: bool) -> list[list[Result]]:
        """Store what several requests have ready, in one call; return what became of each."""
        carried(tx, sum(each.weight for each in group))
        rows, values = self._values(group, waits=waits)
        return self._results(group, rows, cursor(tx).execute(_ADD, values).fetchall())

    def _values(
        self, group: Sequence[Ready], *, waits: bool
    ) -> tuple[list["_Row"], tuple[object, ...]]:
        master_keys = self._settings.master_keys
        rows = [
            _row(master_keys, number, ready.asked, repeat, signed, self._kept(ready, signed))
            for number, ready in enumerate(group)
            for repeat, signed in zip(ready.asked.repeats, ready.signed, strict=True)
            if isinstance(signed, Signed)
        ]
        return rows, (
            self._settings.tenant_records or None,
            self._settings.tenant_stored_mib * bundles.MIB or None,
            waits,
            *map(list, zip(*(row.values for row in rows), strict=True)),
        )

    def _results(
        self, group: Sequence[Ready], rows: Sequence["_Row"], found: Sequence[tuple[Any, ...]]
    ) -> list[list[Result]]:
        ((problems, replayed, moment, key_id),) = found
        self.signer.note(moment, key_id)
        outcomes = iter(map(self._result, rows, problems, replayed))
        return [
            [next(outcomes) if isinstance(each, Signed) else each for each in ready.signed]
            for ready in group
        ]

    def _kept(self, ready: Ready, signed: Signed) -> Stowed:
        found = ready.stowed.get(signed.id)
        if found is not None:
            return found
        return store.waiting(self._blobs, bundles.item(self._settings.master_keys, signed))

    def _result(self, row: "_Row", problem: str | None, sealed: bytes | None) -> Result:
        if problem is None:
            return Stored(row.body)
        if problem == "replayed" and sealed is not None and row.repeat is not None:
            return Stored(row.repeat.open(self._settings.master_keys, sealed), replayed=True)
        return _REFUSALS[problem](self._settings)


def answer(result: Result) -> idempotency.Answered:
    """Return the answer to a request with one record, or raise its error."""
    if isinstance(result, Stored):
        return idempotency.Answered(201, result.body, result.replayed)
    raise result


class Again(Unavailable):
    """The record was signed by what is no longer so, or its session is being changed."""


_REFUSALS: Mapping[str, Callable[[Settings], ServiceError]] = {
    "again": lambda _: Again("The database does not answer; try again in a moment."),
    "key": lambda _: Unauthenticated(BAD_KEY),
    "session": lambda _: NotFound(NO_SESSION),
    "completed": lambda _: SessionCompleted(
        "This session is completed; open a new one for what the agent does next."
    ),
    "bytes": lambda settings: StorageLimit(
        f"The bundles of a tenant may come to {settings.tenant_stored_mib} MiB in all, and with"
        " this one they would be more. Shorten bundle_retention_days, or ask the operator of this"
        " service for a higher TENANT_STORED_MIB."
    ),
    "records": lambda settings: StorageLimit(
        f"A tenant may have {settings.tenant_records} records, expired ones included, and has"
        " them. Ask the operator of this service for a higher TENANT_RECORDS."
    ),
    "other": lambda _: OtherRefused(_OTHER),
    "reused": lambda _: IdempotencyKeyReused(detail=idempotency.REUSED),
    "in-use": lambda _: IdempotencyKeyInUse(idempotency.IN_USE),
}
"""The error for each problem of `add_records`."""


class _Row(NamedTuple):
    """A record as `add_records` takes it, with the JSON that answers it."""

    repeat: idempotency.Request | None
    body: bytes
    values: tuple[object, ...]


def _unstored(ready: Ready) -> list[Result]:
    return [
        each if isinstance(each, ServiceError) else OtherRefused(_OTHER) for each in ready.signed
    ]


def _row(
    master_keys: MasterKeys,
    number: int,
    asked: Asked,
    repeat: idempotency.Request | None,
    signed: Signed,
    kept: Stowed,
) -> _Row:
    leaf = leaves.record(signed.bundle_sha256)
    body = _encode(records.fresh(signed))
    answer = None
    if repeat is not None:
        answer = repeat.seal(master_keys, body)
    values = (
        number,
        signed.tenant_id,
        asked.caller.key_id,
        not asked.caller.confirmed,
        asked.atomic,
        signed.agent_as_of,
        signed.id,
        signed.session_id,
        signed.agent_id,
        signed.principal,
        signed.kind,
        signed.title,
        signed.labels_json,
        signed.occurred_at,
        signed.bundle_sha256,
        signed.bundle_size,
        signed.key_id,
        signed.signature,
        signed.created_at,
        signed.trace_id,
        kept.bytes,
        kept.blob,
        ids.new(signed.created_at),
        merkle.leaf_hash(leaf),
        leaf,
        repeat and repeat.scope,
        repeat and repeat.body_sha256,
        answer,
    )
    return _Row(repeat, body, values)


def _encode(body: object) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
