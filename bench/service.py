"""The service under measurement: the lines of the Procfile as written, and its API's users."""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any
from uuid import UUID

import requests

from app.core import tenants
from app.database import Database
from app.settings import Settings
from bench.processes import ROOT, BenchError, Process, until
from bench.traffic import load
from bench.traffic.load import Plan
from dev import procfile
from dev.stores.store import free_port

if TYPE_CHECKING:
    from bench.lab import Lab

_START_SECONDS = 30.0
_ROLES = ("web", "worker", "scheduler")

# What a finding of the bench carries; its event is a body of some 700 bytes.
_DETAIL = "The value was written where people without need of it could read it. " * 3


class Service:
    """The service's processes; `web`, `worker` and `scheduler` can be stopped one by one."""

    def __init__(self, lab: "Lab", environ: Mapping[str, str] | None = None) -> None:
        """`environ` goes before the bench's own environment."""
        self.lab = lab
        self._lines = procfile.read(ROOT / "Procfile")
        self.port = free_port()
        self.base_url = f"http://127.0.0.1:{self.port}"
        self._environ = {
            "HOST": "127.0.0.1",
            "PORT": str(self.port),
            "BASE_URL": self.base_url,
            # No limit is measured here.
            "RATE_LIMIT": "1000000000 per minute",
            "TENANT_RATE_LIMIT": "1000000000 per minute",
            "ADDRESS_RATE_LIMIT": "1000000000 per minute",
            **(environ or {}),
        }
        self.running: dict[str, Process] = {}
        settings = Settings.from_environ({**lab.environ, **self._environ})
        self.master_keys = settings.master_keys
        self.database = Database(settings.database_url, application="bench")

    def start(self) -> None:
        """Migrate and start everything; return when all is up."""
        self._spawn("release").finish(_START_SECONDS)
        for role in _ROLES:
            self.start_role(role)
        self.wait_until_up()

    def stop(self) -> None:
        """Stop everything."""
        for role in reversed(list(self.running)):
            self.stop_role(role)
        self.database.close()

    def start_role(self, role: str) -> None:
        """Start one line of the Procfile."""
        self.running[role] = self._spawn(role)

    def stop_role(self, role: str) -> None:
        """Stop one line of the Procfile, and wait until it has ended."""
        self.running.pop(role).stop()

    def wait_until_up(self) -> None:
        """Wait until `/readyz` misses nothing."""
        until(self._is_up, _START_SECONDS, "the service is up")

    def new_tenant(self) -> "Tenant":
        """Make a tenant of a part's own, with a session for its findings."""
        tenant_id, key = tenants.create(
            self.database, self.master_keys, f"bench {secrets.token_hex(4)}"
        )
        return Tenant(self, tenant_id, key)

    def _spawn(self, role: str) -> Process:
        return self.lab.spawn(role, ["/bin/sh", "-c", self._lines[role]], **self._environ)

    def _is_up(self) -> bool:
        for process in self.running.values():
            process.require_alive()
        try:
            answer = requests.get(f"{self.base_url}/readyz", timeout=5)
        except requests.ConnectionError:
            return False
        return answer.ok and not answer.json()["degraded"]


@dataclass(frozen=True)
class Books:
    """One webhook's accounting, as the API answers it."""

    accepted: int
    succeeded: int
    pending: int
    balanced: bool


class Tenant:
    """A tenant that uses the API with its root admin key."""

    def __init__(self, service: Service, tenant_id: UUID, key: str) -> None:
        self.id = tenant_id
        self._service = service
        self._http = requests.Session()
        self._http.trust_env = False
        self._authorization = ("Authorization", f"Bearer {key}")
        self._http.headers.update([self._authorization])
        agent = self.ask("POST", "/v1/agents", {"name": "bench"})["id"]
        self._opens = {"agent_id": agent, "principal": "bench"}
        self._sessions: list[str] = []
        self.spread(1)
        self._session_id = self._sessions[0]

    def spread(self, sessions: int) -> None:
        """Spread batches of findings over so many sessions."""
        while len(self._sessions) < sessions:
            self._sessions.append(self.ask("POST", "/v1/sessions", self._opens)["id"])

    @property
    def headers(self) -> dict[str, str]:
        """The headers that name its key."""
        return dict([self._authorization])

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Send one request and return the JSON of a good answer; raises `BenchError`."""
        answer = self._http.request(method, self._service.base_url + path, json=body, timeout=60)
        if not answer.ok:
            raise BenchError(f"{method} {path} is answered {answer.status_code}: {answer.text}")
        return answer.json() if answer.content else None

    def webhook(self, url: str, **wanted: Any) -> str:
        """Make a webhook that wants every finding; return its path."""
        wanted |= {"url": url, "event_types": ["finding.created"]}
        return f"/v1/webhooks/{self.ask('POST', '/v1/webhooks', wanted)['id']}"

    def record(self) -> str:
        """Post a record; return its id."""
        body = {"session_id": self._session_id, "kind": "bench", "title": "A step", "content": None}
        return str(self.ask("POST", "/v1/records", body)["id"])

    def answers(self, path: str) -> bool:
        """Say whether a GET has a good answer by now."""
        return self._http.get(self._service.base_url + path, timeout=60).ok

    def books(self, webhook: str) -> Books:
        """Return a webhook's accounting."""
        found = self.ask("GET", f"{webhook}/accounting")
        return Books(**{each.name: found[each.name] for each in fields(Books)})

    def wait_until_closed(self, webhook: str, seconds: float) -> Books:
        """Wait until every event accepted has its outcome written; raises `BenchError`."""
        until(lambda: self.books(webhook).pending == 0, seconds, "the books are closed")
        books = self.books(webhook)
        if not books.balanced or books.accepted != books.succeeded:
            raise BenchError(f"the books do not balance: {books}")
        return books

    def findings(self, *, connections: int, batch: int | None = None, **limits: Any) -> Plan:
        """Return a plan that posts findings, one a request or `batch` a request.

        `limits` are the plan's `count`, `seconds`, `rate` and `first`.
        """
        if batch is None:
            path, body = "/v1/findings", self._finding(load.NUMBER.decode())
        else:
            path = "/v1/findings/batch"
            body = {"findings": [self._finding(f"{place:09d}", place) for place in range(batch)]}
        return Plan(
            self._service.port,
            load.head("POST", path, [self._authorization]),
            json.dumps(body).encode(),
            connections,
            **limits,
        )

    def records(self, *, connections: int, batch: int | None = None, **limits: Any) -> Plan:
        """Return a plan that posts records of some 2 KB, with steps, one or `batch` a request."""
        path, body = "/v1/records", self.record_body()
        if batch is not None:
            path, body = "/v1/records/batch", {"records": [body] * batch}
        return Plan(
            self._service.port,
            load.head("POST", path, [self._authorization]),
            json.dumps(body).encode(),
            connections,
            **limits,
        )

    def gets(self, path: str, *, connections: int, **limits: Any) -> Plan:
        """Return a plan that asks for a path; `limits` as those of `findings`."""
        return Plan(self._service.port, self.head("GET", path), b"", connections, **limits)

    def head(self, method: str, path: str) -> bytes:
        """Write the head of a request with this tenant's key, but for its length."""
        return load.head(method, path, [self._authorization])

    def record_body(self, steps: int = 4) -> dict[str, Any]:
        """Return the body of a record; with more than four steps, some 340 bytes each."""
        step: dict[str, Any] = {
            "name": "read the order",
            "kind": "tool",
            "started_at": "2026-11-20T02:13:02.120Z",
            "ended_at": "2026-11-20T02:13:02.480Z",
            "status": "ok",
            "attributes": {"tool": "shop.orders", "rows": 1},
            "inputs": ["order"],
            "outputs": ["decision"],
        }
        if steps > 4:
            step["attributes"]["query"] = _DETAIL[:140]
        return {
            "session_id": self._session_id,
            "kind": "refund.decision",
            "title": f"Order {load.NUMBER.decode()} refunded",
            "labels": {"queue": "eu-west"},
            "content": {"amount": "49.90", "currency": "EUR", "reason": _DETAIL},
            "steps": [step] * steps,
        }

    def post(self, plan: Plan) -> load.Tally:
        """Drive a plan; raises `BenchError` when anything of it was refused."""
        return self._service.lab.drive(plan)

    def _finding(self, rule: str, place: int = 0) -> dict[str, Any]:
        return {
            "session_id": self._sessions[place % len(self._sessions)],
            "rule": rule,
            "severity": "high",
            "title": "A customer's address was written to a log",
            "detail": _DETAIL,
            "data": {"file": "app.log", "line": 17, "tags": ["pii", "log", "address"]},
        }
