"""Findings posted at once by many, each with a word of its own, and the rows that come of them."""

import json
import threading
from collections import Counter
from collections.abc import Sequence

import psycopg
import requests

from tests.e2e.harness.misfortune import House
from tests.e2e.harness.stack import ANSWER_SECONDS, Caller
from tests.support.faults import until

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


def hold(service: House, senders: Sequence[Sender]) -> None:
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
