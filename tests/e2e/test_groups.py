"""Requests that are stored together, while web and PostgreSQL are killed in the middle of them."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
import requests

from tests.e2e.harness.misfortune import House, house, suffer
from tests.e2e.harness.ordeal import SETTINGS
from tests.e2e.harness.stack import ANSWER_SECONDS, Caller
from tests.support.faults import LONG_ENOUGH, until

pytestmark = [pytest.mark.stacks, pytest.mark.toolbox]

_SECONDS = 40
_SENDERS = 6

_ROWS = """
SELECT f.data_json, f.tenant_id, s.tenant_id, f.principal, 'fnd_' || encode(uuid_send(f.id), 'hex'),
       (SELECT count(*) FROM events AS e WHERE e.subject_id = f.id)
  FROM findings AS f LEFT JOIN sessions AS s ON s.id = f.session_id WHERE f.rule = 'grouped'
"""


class Sender:
    """Posts findings one after another, each with a word of its own, and compares each answer."""

    def __init__(self, name: str, caller: Caller, session_id: str, *, repeats: bool) -> None:
        self.name = name
        self.sent: list[str] = []
        self.accepted: dict[str, str] = {}
        self.statuses: Counter[int] = Counter()
        self._caller = caller
        self._session_id = session_id
        self._repeats = repeats

    def post_until(self, over: threading.Event) -> None:
        """Post on: each finding once, or with an Idempotency-Key until it is accepted."""
        while not over.is_set():
            word = f"{self.name} {len(self.sent)}"
            self.sent.append(word)
            while not self._posted(word) and self._repeats and not over.is_set():
                pass

    def _posted(self, word: str) -> bool:
        body = {
            "session_id": self._session_id,
            "rule": "grouped",
            "severity": "low",
            "title": word,
            "data": {"mine": word},
        }
        headers = {"Idempotency-Key": word} if self._repeats else {}
        try:
            answer = requests.post(
                f"{self._caller.base_url}/v1/findings",
                json=body,
                headers={"Authorization": f"Bearer {self._caller.key}", **headers},
                timeout=ANSWER_SECONDS,
            )
        except requests.RequestException:
            return False
        self.statuses[answer.status_code] += 1
        if answer.status_code != 201:
            assert answer.status_code in (401, 409, 503), answer.text
            return answer.status_code == 401
        made = answer.json()
        assert (made["title"], made["data"]) == (word, {"mine": word})
        assert made["session_id"] == self._session_id
        self.accepted[word] = made["id"]
        return True


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Run one service."""
    with house(tmp_path_factory.mktemp("house"), SETTINGS) as running:
        yield running


def test_each_201_is_stored_once_and_is_its_own(service: House) -> None:
    callers = [service.stack.fresh_tenant() for _ in range(2)]
    sessions = [caller.session() for caller in callers]
    doomed = callers[0].post("/v1/keys", {"name": "doomed", "role": "write"})
    senders = [
        Sender(f"{number}-{place}-{repeats}", caller, session_id, repeats=repeats)
        for number, (caller, session_id) in enumerate(zip(callers, sessions, strict=True))
        for place in range(_SENDERS)
        for repeats in (False, True)
    ]
    refused = Sender(
        "refused", Caller(callers[0].base_url, doomed["key"]), sessions[0], repeats=False
    )
    over = threading.Event()
    with ThreadPoolExecutor(len(senders) + 1) as pool:
        running = [pool.submit(sender.post_until, over) for sender in [*senders, refused]]
        try:
            until(lambda: len(refused.accepted) > 20)
            callers[0].delete(f"/v1/keys/{doomed['id']}")
            until(lambda: refused.statuses[401] > 0)
            known = len(refused.accepted)
            suffer(_SECONDS, service.killed("web", 0.9), service.postgres_killed(every=4))
        finally:
            over.set()
        for each in running:
            each.result(LONG_ENOUGH)
    assert refused.statuses[401] > 20
    assert len(refused.accepted) == known
    _hold(service, [*senders, refused])
    statuses = sum((sender.statuses for sender in senders), Counter[int]())
    print(f"\ngroups: {dict(statuses)}, refused {refused.statuses[401]}")
    assert statuses[503] > 0
    assert all(len(sender.accepted) > 10 for sender in senders)


def _hold(service: House, senders: list[Sender]) -> None:
    """Hold each answer against the rows: those of each sender in its own tenant, each once."""

    def connected() -> bool:
        try:
            psycopg.connect(service.admin_url).close()
        except psycopg.OperationalError:
            return False
        return True

    until(connected)
    with psycopg.connect(service.admin_url) as connection:
        rows = connection.execute(_ROWS).fetchall()
    stored = Counter(json.loads(data)["mine"] for data, *_ in rows)
    ids = {json.loads(data)["mine"]: finding_id for data, _, _, _, finding_id, _ in rows}
    assert {count for *_, count in rows} == {1}, "each finding has its event"
    assert all(tenant == of_session for _, tenant, of_session, *_ in rows)
    assert {word for word, count in stored.items() if count != 1} == set()
    tenants: dict[str, set[object]] = {}
    for data, tenant, *_ in rows:
        tenants.setdefault(json.loads(data)["mine"][0], set()).add(tenant)
    assert [len(tenants[number]) for number in "01"] == [1, 1]
    assert tenants["0"] != tenants["1"]
    for sender in senders:
        assert {word: ids.get(word) for word in sender.accepted} == sender.accepted
