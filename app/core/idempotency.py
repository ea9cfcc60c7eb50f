"""Idempotency keys: the first response to a request is kept for a day and returned again.

It is stored in the transaction of its effect, and sealed: it may contain a new key or secret.
"""

import hmac
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple, TypeAlias
from uuid import UUID

from app.core.callers import Caller
from app.database import Tx, cursor
from app.errors import IdempotencyKeyInUse, IdempotencyKeyReused, ServiceError
from app.lib.crypto.sealing import MasterKeys

_LOCK = """
SELECT pg_try_advisory_xact_lock(lock), set_config('app.tenant_id', %s, true)
  FROM unnest(%s::bigint[]) AS lock
"""
_WAIT = "SELECT pg_advisory_xact_lock(%s)"
# Materialised: to the planner a young tenant seems to have no rows, and any index good enough.
_FIND = """
SELECT asked.key, asked.scope, body_sha256, status, sealed_answer
  FROM unnest(%s::uuid[], %b::bytea[]) AS asked (key, scope) CROSS JOIN LATERAL (
       SELECT body_sha256, status, sealed_answer FROM idempotency_keys AS kept
        WHERE tenant_id = %s AND api_key_id = asked.key AND kept.scope = asked.scope
          AND created_at > clock_timestamp() - interval '24 hours' OFFSET 0) AS kept
"""
_TENANT = "SELECT set_config('app.tenant_id', %s, true)"
_KEEP = """
INSERT INTO idempotency_keys (tenant_id, api_key_id, scope, body_sha256, status, sealed_answer)
SELECT %s, * FROM unnest(%s::uuid[], %b::bytea[], %b::bytea[], %s::smallint[], %b::bytea[])
ON CONFLICT (tenant_id, api_key_id, scope) DO UPDATE
   SET body_sha256 = excluded.body_sha256, status = excluded.status,
       sealed_answer = excluded.sealed_answer, created_at = clock_timestamp()
"""
_FORGET = """
DELETE FROM idempotency_keys WHERE created_at < clock_timestamp() - interval '24 hours'
"""
_TENANT_OF = attrgetter("tenant_id")
IN_USE = "The first request with this Idempotency-Key is still running; repeat it later."
REUSED = "This Idempotency-Key was used with another body; use a new one."

Kept: TypeAlias = tuple[int, bytes]
"""The status and the body of a stored response."""


@dataclass(frozen=True)
class Request:
    """One repeatable request: tenant, API key, scope (method, path, key), keyed body hash."""

    tenant_id: UUID
    api_key_id: UUID
    scope: bytes
    body_sha256: bytes

    @classmethod
    def of(cls, caller: Caller, key: str, method: str, path: str, body: bytes) -> "Request":
        """Describe a request; its Idempotency-Key counts for this API key, method and path only."""
        scope = sha256(f"{method} {path}\n{key}".encode()).digest()
        # Keyed with the Idempotency-Key, which is not stored: a plain hash reveals a small body.
        keyed = hmac.digest(key.encode(), body, "sha256")
        return cls(caller.tenant_id, caller.key_id, scope, keyed)

    @property
    def lock(self) -> int:
        """The number of the advisory lock that one request at a time holds."""
        name = self.tenant_id.bytes + self.api_key_id.bytes + self.scope
        return int.from_bytes(sha256(name).digest()[:8], "big", signed=True)

    def seal(self, master_keys: MasterKeys, answer: bytes) -> bytes:
        """Seal the response to this request, for its row alone."""
        return master_keys.seal(answer, identity(self.tenant_id, self.api_key_id, self.scope))

    def open(self, master_keys: MasterKeys, sealed: bytes) -> bytes:
        """Return the response that `seal` has sealed."""
        return master_keys.open(sealed, identity(self.tenant_id, self.api_key_id, self.scope))

    def find(self, session: Tx, master_keys: MasterKeys, *, wait: bool = False) -> Kept | None:
        """Return the stored response of this request, or None if there is none.

        Locks the key until the transaction ends, so no other process handles the request
        meanwhile. Raises `IdempotencyKeyInUse` when another transaction holds the lock, unless
        `wait`, and `IdempotencyKeyReused` when the first request had another body.
        """
        if wait:
            cursor(session).execute(_WAIT, (self.lock,))
        (found,) = find_each(session, master_keys, [self])
        if isinstance(found, ServiceError):
            raise found
        return found

    def keep(self, session: Tx, master_keys: MasterKeys, status: int, answer: bytes) -> None:
        """Store the response to this request for 24 hours."""
        keep_each(session, master_keys, [(self, status, answer)])


def find_each(
    tx: Tx, master_keys: MasterKeys, requests: Sequence[Request]
) -> list[Kept | ServiceError | None]:
    """Return for each request what its `find` returns, or the error that it raises.

    The requests may be of several tenants; of those that have one key, the first goes on alone.
    Afterwards the transaction sees the rows of one of the tenants.
    """
    firsts: dict[int, Request] = {}
    for request in requests:
        firsts.setdefault(request.lock, request)
    found: dict[int, Kept | ServiceError] = {}
    for tenant_id, group in groupby(_by_tenant(firsts.values()), _TENANT_OF):
        asked = {(each.api_key_id, each.scope): each for each in group}
        locks = [each.lock for each in asked.values()]
        taken = cursor(tx).execute(_LOCK, (str(tenant_id), locks)).fetchall()
        for request, (is_free, _) in zip(asked.values(), taken, strict=True):
            if not is_free:
                found[id(request)] = IdempotencyKeyInUse(IN_USE)
        values = (*map(list, zip(*asked, strict=True)), tenant_id)
        for *key, body_sha256, status, sealed in cursor(tx).execute(_FIND, values).fetchall():
            request = asked[key[0], key[1]]
            if body_sha256 != request.body_sha256:
                found.setdefault(id(request), IdempotencyKeyReused(detail=REUSED))
            elif id(request) not in found:
                found[id(request)] = status, request.open(master_keys, sealed)
    return [
        found.get(id(each)) if firsts[each.lock] is each else IdempotencyKeyInUse(IN_USE)
        for each in requests
    ]


def keep_each(
    tx: Tx, master_keys: MasterKeys, answers: Sequence[tuple[Request, int, bytes]]
) -> None:
    """Store the responses (status, body) to requests, of any tenants, for 24 hours.

    Afterwards the transaction sees the rows of one of the tenants.
    """
    responses = {id(request): (status, answer) for request, status, answer in answers}
    for tenant_id, group in groupby(_by_tenant(each for each, _, _ in answers), _TENANT_OF):
        kept = [
            (
                each.api_key_id,
                each.scope,
                each.body_sha256,
                responses[id(each)][0],
                each.seal(master_keys, responses[id(each)][1]),
            )
            for each in group
        ]
        cursor(tx).execute(_TENANT, (str(tenant_id),))
        cursor(tx).execute(_KEEP, (tenant_id, *map(list, zip(*kept, strict=True))))


class Answered(NamedTuple):
    """The answer to one request: its status, its body as JSON, and whether it was kept before."""

    status: int
    body: bytes
    replayed: bool = False


def once_each(
    tx: Tx,
    master_keys: MasterKeys,
    requests: Sequence[Request | None],
    make: Callable[[Sequence[int]], Sequence[bytes | ServiceError]],
) -> list[Answered | ServiceError]:
    """Answer many requests with 201, each once; those without a key are None.

    `make` is called once, with the places of those that were not answered before, and returns of
    each its body as JSON, or its error; an error is not kept.
    """
    keyed = [request for request in requests if request is not None]
    kept = iter(find_each(tx, master_keys, keyed))
    found = [None if request is None else next(kept) for request in requests]
    places = [place for place, each in enumerate(found) if each is None]
    made = dict(zip(places, make(places) if places else (), strict=True))
    answers: list[Answered | ServiceError] = []
    for place, before in enumerate(found):
        answer = made.get(place)
        if isinstance(before, ServiceError):
            answers.append(before)
        elif before is not None:
            answers.append(Answered(*before, replayed=True))
        elif isinstance(answer, ServiceError):
            answers.append(answer)
        else:
            answers.append(Answered(201, answer or b""))
    keep_each(
        tx,
        master_keys,
        [
            (request, answer.status, answer.body)
            for request, answer in zip(requests, answers, strict=True)
            if request is not None and isinstance(answer, Answered) and not answer.replayed
        ],
    )
    return answers


def _by_tenant(requests: Iterable[Request]) -> list[Request]:
    """Sort requests by tenant, so that all transactions lock in one order."""
    return sorted(requests, key=_TENANT_OF)


def forget_old(session: Tx) -> int:
    """Delete stored responses older than 24 hours, of all tenants; return how many."""
    return cursor(session).execute(_FORGET).rowcount


def identity(tenant_id: UUID, api_key_id: UUID, scope: bytes) -> str:
    """Return the identity (associated data) under which a stored response is sealed."""
    return f"idempotency_keys/{tenant_id}/{api_key_id}/{scope.hex()}/answer"
