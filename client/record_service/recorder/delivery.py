"""One chunk of a spool, sent: sessions are found or opened, records added, findings after them.

Each thing arrives once. The service repeats its answer to an Idempotency-Key for a day; what may
have been sent longer ago, or with another API key, is looked for before it is sent again.
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Callable, NamedTuple
from urllib.parse import quote

from record_service.errors import Conflict, Denied, NotFound, Problem, RecordsError
from record_service.recorder.runs import Record, Session, dumps
from record_service.recorder.spool import Item
from record_service.transport import Transport

# Half of the day that an Idempotency-Key is kept, for the clocks of two machines.
_KNOWN_SECONDS = 12 * 3600
_MOST_FINDINGS = 1000
MOST_KNOWN = 1000
"""The most sessions of which a courier remembers the id."""

_MOST_TRIES = 3
_GZIP_LEVEL = 3
# A service that hangs must not keep this thread from the spool for longer.
_TIMEOUT = 30.0
# Refusals that another key, an operator or time mends: everything behind them waits as well.
_LATER = frozenset({401, 403, 408, 425, 429})
_LATER_SLUGS = frozenset({"idempotency-key-in-use", "storage-limit"})
_JSON = "application/json"
_PROTOBUF = "application/x-protobuf"


class Dead(NamedTuple):
    """Why the service will never take a run, and its body."""

    status: int
    detail: str
    body: str | bytes


@dataclass
class Outcome:
    """What became of a chunk: the rest of it is to be sent again."""

    done: list[str] = field(default_factory=list)
    dead: dict[str, Dead] = field(default_factory=dict)
    sent: set[str] = field(default_factory=set)
    error: RecordsError | None = None
    """What stopped it, and would stop others."""


class Courier:
    """Sends chunks of spools to one service with one key; of one thread."""

    def __init__(self, transport: Transport, wall_clock: Callable[[], float] = time.time) -> None:
        self._transport = transport
        self._now = wall_clock
        # The service's ids of sessions, and the names that their successors have.
        self._ids: dict[Session, str] = {}
        self._names: dict[Session, str] = {}
        # When a run of this process was first sent without an answer.
        self._sent_at: dict[str, float] = {}

    def tenant(self) -> str:
        """Return the tenant of the key."""
        return str(self._ask("GET", "/v1/keys/self")["tenant_id"])

    def deliver(self, items: Sequence[Item], *, is_foreign: bool) -> Outcome:
        """Send a chunk; return what arrived, what never will, and the error that stopped it."""
        out = Outcome()
        kinds: dict[str, list[Item]] = {"spans": [], "remark": [], "complete": [], "record": []}
        for item in items:
            kinds[item.what if item.what in kinds else "record"].append(item)
        try:
            for item in kinds["spans"]:
                self._one(item, out, self._spans)
            self._records(kinds["record"], out, is_foreign)
            for item in kinds["remark"]:
                self._one(item, out, partial(self._remark, is_foreign=is_foreign))
            waiting = {item.run for item in kinds["record"]} - {*out.done, *out.dead}
            open_in = {Record(each).session for each in kinds["record"] if each.run in waiting}
            for item in kinds["complete"]:
                # A session takes no record after its end.
                if Session.of(json.loads(item.entries[0][2])) not in open_in:
                    self._one(item, out, self._complete)
        except RecordsError as error:
            out.error = error
        for run in (*out.done, *out.dead):
            self._sent_at.pop(run, None)
        return out

    def _one(self, item: Item, out: Outcome, send: Callable[[Item], None]) -> None:
        try:
            send(item)
        except Problem as error:
            if _is_later(error):
                raise
            out.dead[item.run] = Dead(error.status, str(error), item.entries[0][2])
        else:
            out.done.append(item.run)

    # --- records ---

    def _records(self, items: Sequence[Item], out: Outcome, is_foreign: bool) -> None:
        ready: list[tuple[Item, Record]] = []
        for item in items:
            record = Record(item)
            try:
                record.session_id = self._session_id(record.session)
            except Problem as error:
                if _is_later(error):
                    raise
                out.dead[item.run] = Dead(error.status, str(error), record.body())
                continue
            found = self._find(record) if self._is_in_doubt(item, is_foreign) else None
            if found is None:
                ready.append((item, record))
            else:
                self._stored(item, record, found, out, is_foreign)
        self._batch(ready, out, is_foreign)

    def _is_in_doubt(self, item: Item, is_foreign: bool) -> bool:
        """Say whether it may have arrived without the service knowing its Idempotency-Key still."""
        if is_foreign:
            return True
        since = item.at if item.is_old else self._sent_at.get(item.run, self._now())
        return not 0 <= self._now() - since < _KNOWN_SECONDS

    def _find(self, record: Record) -> str | None:
        """Return the id of the record that a run has become, if it has: its trace id tells."""
        rows = self._ask("GET", "/v1/records", query={"trace_id": record.run, "limit": 1})["data"]
        return rows[0]["id"] if rows else None

    def _batch(self, ready: list[tuple[Item, Record]], out: Outcome, is_foreign: bool) -> None:
        if not ready:
            return
        for item, _ in ready:
            self._sent_at.setdefault(item.run, self._now())
        body = '{"records":[' + ",".join(record.body() for _, record in ready) + "]}"
        try:
            answers = self._post("/v1/records/batch", body.encode())["data"]
        except Problem as error:
            if _is_later(error):
                raise
            if len(ready) > 1:
                # One that the whole request is refused for must not take the others along.
                half = len(ready) // 2
                self._batch(ready[:half], out, is_foreign)
                self._batch(ready[half:], out, is_foreign)
                return
            item, record = ready[0]
            out.dead[item.run] = Dead(error.status, str(error), record.body())
            return
        again: list[tuple[Item, Record]] = []
        for (item, record), answer in zip(ready, answers):
            problem = answer.get("problem")
            if problem is None:
                self._stored(item, record, answer["id"], out, is_foreign)
            elif self._may_go_again(record, problem, out):
                again.append((item, record))
            elif not _waits(problem["status"], _slug(problem)):
                out.dead[item.run] = Dead(problem["status"], dumps(problem), record.body())
        self._batch(again, out, is_foreign)

    def _may_go_again(self, record: Record, problem: dict[str, Any], out: Outcome) -> bool:
        """Say whether a refused record may be sent at once, by another session or another key."""
        slug = _slug(problem)
        record.tries += 1
        if slug in ("session-completed", "not-found") and record.tries <= _MOST_TRIES:
            if slug == "session-completed":
                self._advance(record.session)
            # Else what is known of the session is older than a restored database.
            self._ids.pop(record.session, None)
            record.session_id = self._session_id(record.session)
            return True
        if slug == "idempotency-key-reused" and not record.is_renamed:
            # It may have arrived in another form, such as in a session that has ended since.
            record.is_renamed = True
            found = self._find(record)
            if found is None:
                record.key += "-2"
                return True
            out.done.append(record.run)
        return False

    def _stored(
        self, item: Item, record: Record, record_id: str, out: Outcome, is_foreign: bool
    ) -> None:
        """Send the findings of a record that is stored; then nothing of it is left."""
        told, refused = {"record_id": record_id}, None
        for start in range(0, len(record.findings), _MOST_FINDINGS):
            part = record.findings[start : start + _MOST_FINDINGS]
            if not (self._is_in_doubt(item, is_foreign) and self._has(told, part[0])):
                refused = self._findings(told, part, f"{item.run}-f{start}") or refused
        if refused is None:
            out.done.append(item.run)
        else:
            detail = f"Of the findings of {record_id}: {refused}"
            out.dead[item.run] = Dead(refused.status, detail, f"[{','.join(record.findings)}]")

    def _findings(self, told: dict[str, str], texts: Sequence[str], key: str) -> Problem | None:
        """Add findings; return why one of them will never be taken, which keeps out no other."""
        inside = ",".join(dumps(told)[:-1] + "," + each[1:] for each in texts)
        try:
            self._post("/v1/findings/batch", f'{{"findings":[{inside}]}}'.encode(), key)
        except Problem as error:
            if _is_later(error):
                raise
            if len(texts) == 1:
                return error
        else:
            return None
        half = len(texts) // 2
        first = self._findings(told, texts[:half], f"{key}-0")
        return self._findings(told, texts[half:], f"{key}-1") or first

    def _has(self, told: dict[str, str], finding: str) -> bool:
        """Say whether a record or session has a finding just like this."""
        mine = json.loads(finding)
        query = {**told, "rule": mine["rule"], "severity": mine["severity"], "limit": 200}
        rows = self._ask("GET", "/v1/findings", query=query)["data"]
        return any(all(row.get(name) == value for name, value in mine.items()) for row in rows)

    # --- the rest ---

    def _spans(self, item: Item) -> None:
        raw = item.entries[0][2]
        headers = {"Content-Type": _PROTOBUF, "Content-Encoding": "gzip"}
        self._send("POST", "/v1/traces", body=raw, headers=headers)

    def _remark(self, item: Item, *, is_foreign: bool) -> None:
        head = json.loads(item.entries[0][2])
        told = {"session_id": self._session_id(Session.of(head))}
        finding = dumps(head["finding"])
        if not (self._is_in_doubt(item, is_foreign) and self._has(told, finding)):
            self._sent_at.setdefault(item.run, self._now())
            refused = self._findings(told, [finding], item.run)
            if refused is not None:
                raise refused

    def _complete(self, item: Item) -> None:
        head = json.loads(item.entries[0][2])
        session = Session.of(head)
        if session not in self._ids:
            name = self._names.get(session, session.external_id)
            found = self._put(session, name)
            if found["status"] != "open":
                return
            _forget_oldest(self._ids)
            self._ids[session] = found["id"]
        path = f"/v1/sessions/{self._ids[session]}/complete"
        try:
            self._post(path, dumps(head["completion"]).encode(), item.run, zipped=False)
        except Conflict as error:
            if error.slug != "session-completed":
                raise
        self._ids.pop(session, None)

    # --- sessions ---

    def _session_id(self, session: Session) -> str:
        """Return the id of a session that takes records, opened if there is none.

        As the front door does: one of another agent or principal makes `<id>#<agent>`, one that
        has ended `<id>#2`.
        """
        while session not in self._ids:
            name = self._names.get(session, session.external_id)
            try:
                found = self._put(session, name)
            except Conflict as error:
                others = f"{session.external_id}#{session.agent}"
                if error.slug != "external-id-in-use" or name.startswith(others):
                    raise
                self._names[session] = others
                continue
            _forget_oldest(self._ids)
            _forget_oldest(self._names)
            if found["status"] == "open":
                self._ids[session] = found["id"]
            else:
                self._advance(session)
        return self._ids[session]

    def _advance(self, session: Session) -> None:
        """Go on to the session that follows one which has ended."""
        name = self._names.get(session, session.external_id)
        base, _, number = name.rpartition("#")
        is_numbered = name != session.external_id and number.isdecimal()
        self._names[session] = f"{base}#{int(number) + 1}" if is_numbered else f"{name}#2"

    def _put(self, session: Session, name: str) -> dict[str, Any]:
        """Get or open a session by its name; its agent is made where it does not exist."""
        by_id = session.agent.startswith("agt_")
        body: dict[str, Any] = {"principal": session.principal}
        body["agent_id" if by_id else "agent_external_id"] = session.agent
        if session.title is not None:
            body["title"] = session.title
        if session.metadata is not None:
            body["metadata"] = json.loads(session.metadata)
        path = f"/v1/sessions/by-external-id/{quote(name, safe='')}"
        if session.version and not by_id:
            self._agent(session)
        try:
            found: dict[str, Any] = self._ask("PUT", path, body)
        except NotFound as error:
            if by_id or not error.slug:
                raise
            self._agent(session)
            found = self._ask("PUT", path, body)
        return found

    def _agent(self, session: Session) -> None:
        body = {"version": session.version} if session.version else {}
        path = f"/v1/agents/by-external-id/{quote(session.agent, safe='')}"
        try:
            self._ask("PUT", path, body)
        except Denied as error:
            # A pinned key makes no agents, and needs none: the session's answer says the rest.
            if error.slug != "pinned-key":
                raise

    # --- requests ---

    def _post(self, path: str, body: bytes, key: str | None = None, *, zipped: bool = True) -> Any:
        headers = {"Content-Type": _JSON}
        if key is not None:
            headers["Idempotency-Key"] = key
        if zipped:
            headers["Content-Encoding"] = "gzip"
            body = gzip.compress(body, _GZIP_LEVEL)
        return self._send("POST", path, body=body, headers=headers).json()

    def _ask(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        raw = None if body is None else dumps(body).encode()
        return self._send(method, path, body=raw, **options).json()

    def _send(self, method: str, path: str, **options: Any) -> Any:
        return self._transport.send(method, path, timeout=_TIMEOUT, **options)


def _forget_oldest(known: dict[Session, str]) -> None:
    """Keep what is known of sessions small; asked again the service says the same."""
    while len(known) >= MOST_KNOWN:
        del known[next(iter(known))]


def _is_later(error: Problem) -> bool:
    # What names no problem of the service is somebody else's, such as a proxy's of a service away.
    return error.status != 413 and (not error.slug or _waits(error.status, error.slug))


def _waits(status: int, slug: str) -> bool:
    return status >= 500 or status in _LATER or slug in _LATER_SLUGS


def _slug(problem: dict[str, Any]) -> str:
    return str(problem["type"]).rpartition("/")[2]
