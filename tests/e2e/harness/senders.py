"""Findings or records posted at once by many, each with a word of its own, and their rows."""

import threading
from collections import Counter
from collections.abc import Sequence

import psycopg
import requests

from tests.e2e.harness.misfortune import House
from tests.e2e.harness.stack import ANSWER_SECONDS, Caller
from tests.support.faults import until

# A word, its tenant, that of its session, its id, and how often what belongs to it is there.
_FINDINGS = """
SELECT f.title, f.tenant_id, s.tenant_id, 'fnd_' || encode(uuid_send(f.id), 'hex'),
       (SELECT count(*) FROM events AS e WHERE e.subject_id = f.id)
  FROM findings AS f LEFT JOIN sessions AS s ON s.id = f.session_id WHERE f.rule = 'grouped'
"""
_RECORDS = """
SELECT r.title, r.tenant_id, s.tenant_id, 'rec_' || encode(uuid_send(r.id), 'hex'),
       (SELECT count(*) FROM bundles AS b JOIN log_leaves AS l ON l.data = convert_to(
               '{"bundle_sha256":"' || encode(r.bundle_sha256, 'hex') || '","type":"record"}',
               'UTF8')
         WHERE (b.tenant_id, b.record_id) = (r.tenant_id, r.id))
  FROM records AS r LEFT JOIN sessions AS s ON s.id = r.session_id WHERE r.kind = 'grouped'
"""
ROWS = {"findings": _FINDINGS, "records": _RECORDS}


class Sender:
    """Posts one after another, each with a word of its own, and compares each answer."""

    def __init__(
        self, what: str, name: str, caller: Caller, session_id: str, *, repeats: bool
    ) -> None:
        """`what`: `findings` or `records`."""
        self.what = what
        self.name = name
        self.sent: list[str] = []
        self.accepted: dict[str, str] = {}
        self.statuses: Counter[int] = Counter()
        self._caller = caller
        self._session_id = session_id
        self._repeats = repeats

    def post_until(self, over: threading.Event) -> None:
        """Post on: each once, or with an Idempotency-Key until it is accepted."""
        while not over.is_set():
            word = f"{self.name} {len(self.sent)}"
            self.sent.append(word)
            while not self._posted(word) and self._repeats and not over.is_set():
                pass

    def _posted(self, word: str) -> bool:
        own = {
            "findings": {"rule": "grouped", "severity": "low", "data": {"mine": word}},
            "records": {"kind": "grouped", "content": {"mine": word}},
        }
        body = {"session_id": self._session_id, "title": word, **own[self.what]}
        headers = {"Idempotency-Key": word} if self._repeats else {}
        try:
            answer = requests.post(
                f"{self._caller.base_url}/v1/{self.what}",
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
        assert (made["title"], made["session_id"]) == (word, self._session_id)
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
        rows = connection.execute(ROWS[senders[0].what]).fetchall()
    assert {count for *_, count in rows} == {1}, "each has its event, or its bundle and leaf, once"
    assert all(tenant == of_session for _, tenant, of_session, *_ in rows)
    words = Counter(word for word, *_ in rows)
    assert {word for word, count in words.items() if count != 1} == set()
    tenants: dict[str, set[object]] = {}
    for word, tenant, *_ in rows:
        tenants.setdefault(word[0], set()).add(tenant)
    assert [len(tenants[number]) for number in "01"] == [1, 1]
    assert tenants["0"] != tenants["1"]
    ids = {word: row_id for word, _, _, row_id, _ in rows}
    for sender in senders:
        assert {word: ids.get(word) for word in sender.accepted} == sender.accepted
