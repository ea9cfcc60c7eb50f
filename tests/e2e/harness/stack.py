"""A whole real stack for tests: web, worker and scheduler on stores of its own, over HTTP.

`running` starts one by `python -m dev.up`, in a folder of the test's and on a free port, and
stops it. Tests share it and are apart by tenant, as customers are.
"""

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import redis
import requests

from app import heartbeats
from app.core import tenants
from app.database import Database
from app.errors import Unavailable
from app.settings import Settings, kept_settings
from dev.stack import Stack
from tests.support.faults import LONG_ENOUGH, until
from tests.support.servers.ports import own_port
from tests.support.servers.receivers import Listener
from tests.support.servers.shared import Shared, shared

# A guard, no measure: on a machine that does much else Python alone takes half a minute to start.
START_SECONDS = 180.0
# Well above what the service waits for a Redis, a lock or a statement.
ANSWER_SECONDS = 60.0
# A plain environment: no setting of this machine or of the test run reaches the service.
PLAIN = {name: os.environ[name] for name in ("PATH", "LANG", "HOME") if name in os.environ}

# As `make` starts it there are two of each; Python's start is most of what a stack costs.
ONE_OF_EACH = {"WEB_CONCURRENCY": "1", "WORKER_PROCESSES": "1"}
TWO_OF_EACH = {"WEB_CONCURRENCY": "2", "WORKER_PROCESSES": "2"}


class Caller:
    """The HTTP API as one key's holder sees it, from outside."""

    def __init__(self, base_url: str, key: str) -> None:
        self.key = key
        self.base_url = base_url
        self._http = requests.Session()
        self._http.trust_env = False
        self._http.headers["Authorization"] = f"Bearer {key}"

    def ask(self, method: str, path: str, **options: Any) -> requests.Response:
        """Send a request and return the answer, whatever it is."""
        return self._http.request(method, self.base_url + path, timeout=ANSWER_SECONDS, **options)

    def get(self, path: str, status: int = 200, /, **query: Any) -> Any:
        """GET `path`; return the JSON of an answer of this status."""
        return self._json(self.ask("GET", path, params=query), status)

    def post(self, path: str, body: Any = None, status: int = 201) -> Any:
        """POST `body`, or none; return the JSON of an answer of this status."""
        return self._json(self.ask("POST", path, json=body), status)

    def patch(self, path: str, body: Any) -> Any:
        """PATCH `path` with `body`; return the JSON of a good answer."""
        return self._json(self.ask("PATCH", path, json=body), 200)

    def delete(self, path: str) -> None:
        """DELETE `path`."""
        answer = self.ask("DELETE", path)
        assert answer.status_code == 204, answer.text

    def session(self) -> str:
        """Make an agent and open a session of it; return the session's id."""
        agent = self.post("/v1/agents", {"name": "invoice-assistant"})
        body = {"agent_id": agent["id"], "principal": "maria@example.com"}
        return str(self.post("/v1/sessions", body)["id"])

    def findings(self, session_id: str, count: int) -> list[dict[str, Any]]:
        """Add `count` findings in one request."""
        new = [
            {"session_id": session_id, "rule": "r", "severity": "low", "title": f"finding {number}"}
            for number in range(1, count + 1)
        ]
        added: list[dict[str, Any]] = self.post("/v1/findings/batch", {"findings": new})["data"]
        return added

    def webhook(self, receiver: Listener, **fields: Any) -> "Hook":
        """Make a webhook to a receiver."""
        made = self.post("/v1/webhooks", {"url": receiver.url(), **fields})
        return Hook(self, made["id"], made["secret"])

    @staticmethod
    def _json(answer: requests.Response, status: int) -> Any:
        assert answer.status_code == status, answer.text
        return answer.json()


class Hook:
    """One webhook of a caller."""

    def __init__(self, caller: Caller, webhook_id: str, secret: str) -> None:
        self.id = webhook_id
        self.path = f"/v1/webhooks/{webhook_id}"
        self.secret = secret
        self._caller = caller

    def deliveries(self, **filters: Any) -> list[dict[str, Any]]:
        """Return its deliveries, newest first."""
        listed = self._caller.get(f"{self.path}/deliveries", limit=200, **filters)
        found: list[dict[str, Any]] = listed["data"]
        return found

    def delivery(self, delivery_id: str) -> dict[str, Any]:
        """Return one delivery with every attempt."""
        found: dict[str, Any] = self._caller.get(f"{self.path}/deliveries/{delivery_id}")
        return found

    def books(self) -> dict[str, Any]:
        """Return its accounting, with what is pending found by a scan."""
        found: dict[str, Any] = self._caller.get(f"{self.path}/accounting?exact=true")
        return found

    def settled(self, seconds: float = LONG_ENOUGH) -> dict[str, Any]:
        """Return its accounting once nothing is pending; fail after `seconds`."""
        until(lambda: not _pending(self.books()), seconds)
        return self.books()


def _pending(books: dict[str, Any]) -> int:
    return int(sum(line["pending"] for line in (books, books["tests"], books["replays"])))


class RunningStack:
    """A stack that is up, as callers, operators and misfortune meet it."""

    def __init__(self, stack: Stack, data_dir: Path) -> None:
        values = stack.values()
        self.base_url = values["BASE_URL"]
        self.redis_url = values["REDIS_URL"]
        self.root_key = values["SERVICE_API_KEY"]
        self.env_file = stack.env_file
        self.client_env = stack.client_env
        self._data_dir = data_dir
        self._tenants = 0

    def fresh_tenant(self) -> Caller:
        """Make a tenant, as the operator's command does; return a caller with its root key."""
        self._tenants += 1
        settings = Settings.from_environ(kept_settings(self._data_dir))
        made: list[str] = []

        def make() -> bool:
            database = Database(settings.database_url, application="tests")
            try:
                # On a machine that stands still for seconds it is told to come again.
                with suppress(Unavailable):
                    name = f"tenant {self._tenants}"
                    made.append(tenants.create(database, settings.master_keys, name)[1])
            finally:
                database.close()
            return bool(made)

        until(make)
        return Caller(self.base_url, made[0])

    def kill_worker(self) -> None:
        """Kill a worker process, as a machine that runs out of memory does."""
        with redis.Redis.from_url(self.redis_url) as client:
            pids = [each.pid for each in heartbeats.processes(client) if each.role == "worker"]
        assert pids, "no worker is up"
        os.kill(pids[0], signal.SIGKILL)

    def flush_redis(self) -> None:
        """Lose everything that Redis holds."""
        with redis.Redis.from_url(self.redis_url) as client:
            client.flushall()


@contextmanager
def running(folder: Path, **settings: str) -> Iterator[RunningStack]:
    """Run a whole stack, with these settings besides, for the length of the `with`."""
    data_dir = folder / "data"
    environ = {**PLAIN, **ONE_OF_EACH, "DATA_DIR": str(data_dir), "PORT": str(own_port())}
    environ |= settings
    stack = Stack(environ, folder / "said")

    def start() -> None:
        stack.start()
        until(stack.is_up, START_SECONDS)

    try:
        start()
        it = RunningStack(stack, data_dir)
        answers = partial(is_healthy, it.base_url)
        with shared(Shared("the stack", lambda: stack.process, stack.log, start, answers)):
            yield it
    except BaseException:
        print(stack.log.read_text("utf-8", "replace")[-20_000:])
        raise
    finally:
        stack.stop()
        remove_data(data_dir)


def is_healthy(base_url: str) -> bool:
    """Say whether a web process answers, within a time that only one that hangs exceeds."""
    try:
        return requests.get(f"{base_url}/healthz", timeout=ANSWER_SECONDS).ok
    except requests.RequestException:
        return False


def remove_data(data_dir: Path) -> None:
    """Remove what root's PostgreSQL keeps elsewhere: its user cannot reach a test's folder."""
    data = data_dir / "postgres" / "data"
    if data.is_symlink():
        shutil.rmtree(data.resolve().parent)
        # Two stacks of a test may have had the same folder.
        data.unlink()
