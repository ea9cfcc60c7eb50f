"""The feed of all events: nothing is missed though transactions commit out of order."""

import base64
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from flask import Flask

from app import clock, ids
from app.api.http import admission
from app.api.http.services import EXTENSION
from app.core.delivery import events
from app.core.delivery.events import NewEvent
from app.core.delivery.history import event_feed
from app.database import Database
from app.lib.gateway.gateway import WAIT, WAITED, Wait
from tests.support.callers.api import ApiOf, FreshTenant, Mint
from tests.support.callers.making import (
    finding_of,
    make_finding,
    make_session,
    pin_of,
    pointers,
    refused,
    revoke,
)
from tests.support.callers.sending import make_findings
from tests.support.faults import until

PATH = "/v1/events"


def read(api: ApiOf, after: str | None = None, query: str = "") -> dict[str, Any]:
    position = "" if after is None else f"&after={after}"
    return api().found(f"{PATH}?{query}{position}")


def read_all(api: ApiOf, after: str | None = None, query: str = "") -> tuple[list[str], str]:
    """Return the ids of all events from a position on, and the position behind them."""
    found: list[str] = []
    while page := read(api, after, query):
        after = page["next_after"]
        if not page["data"]:
            return found, str(after)
        found += [each["id"] for each in page["data"]]
    raise AssertionError


def emit(session: Any, tenant: FreshTenant, count: int = 1) -> list[str]:
    made = [NewEvent("webhook.test", {"number": n}, clock.now()) for n in range(count)]
    made = [NewEvent(each.type, each.data, made[0].at) for each in made]
    return [ids.text("evt", each) for each in events.emit(session, tenant.id, made)]


def test_events_come_oldest_first_without_a_webhook(api: ApiOf) -> None:
    findings = [each["id"] for each in make_findings(api(), 5)]
    first = read(api, query="limit=3")
    rest = read(api, first["next_after"])
    assert [each["data"]["id"] for each in first["data"] + rest["data"]] == findings
    assert first["data"][0].keys() == {"id", "type", "timestamp", "data"}
    assert read(api, rest["next_after"])["data"] == []


@pytest.mark.parametrize("limit", [1, 2, 7, 200])
def test_many_that_commit_late_and_one_meanwhile_are_all_read(
    api: ApiOf, database: Database, tenant: FreshTenant, limit: int
) -> None:
    with database.transaction(tenant.id) as latest:
        last = emit(latest, tenant, 2)
        with database.transaction(tenant.id) as late:
            held = emit(late, tenant, 5)
            with database.transaction(tenant.id) as quick:
                early = emit(quick, tenant)
            seen, after = read_all(api, query=f"limit={limit}")
            assert seen == early
        page = read(api, after, f"limit={limit}")
    # `latest`, with the lowest ids, commits between two pages of what came late.
    rest, _ = read_all(api, page["next_after"], f"limit={limit}")
    found = [each["id"] for each in page["data"]] + rest
    assert sorted(found) == sorted(last + held)


def test_writers_at_once_are_read_whole_while_they_write(
    api: ApiOf, database: Database, tenant: FreshTenant
) -> None:
    made: list[str] = []

    def write() -> None:
        for _ in range(40):
            with database.transaction(tenant.id) as session:
                made.extend(emit(session, tenant, 2))

    writers = [threading.Thread(target=write) for _ in range(4)]
    for writer in writers:
        writer.start()
    seen: list[str] = []
    after: str | None = None
    while any(writer.is_alive() for writer in writers):
        found, after = read_all(api, after, "limit=7")
        seen += found
    for writer in writers:
        writer.join()
    seen += read_all(api, after)[0]
    assert set(seen) == set(made)
    assert len(made) == 320


def test_now_begins_here_and_a_type_filters(api: ApiOf) -> None:
    session = make_session(api())
    make_finding(api(), session["id"])
    here = read(api, "now")
    assert here["data"] == []
    api().post(f"/v1/sessions/{session['id']}/complete", {"outcome": "succeeded"})
    page = read(api, here["next_after"])
    assert [each["type"] for each in page["data"]] == ["session.completed"]
    only = read(api, query="type=finding.created")
    assert [each["type"] for each in only["data"]] == ["finding.created"]
    assert read(api, only["next_after"], "type=finding.created")["data"] == []


@pytest.mark.parametrize("query", ["limit=200", "type=finding.created"])
def test_a_page_takes_no_more_bytes_from_the_database_than_it_may_have(
    api: ApiOf, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    taken: list[int] = []

    found = event_feed.Found

    def weigh(row: tuple[Any, ...]) -> event_feed.Found:
        taken.append(len(row[2]))
        return found(*row)

    session_id = make_session(api())["id"]
    made = [make_finding(api(), session_id, data="x" * 200_000)["id"] for _ in range(26)]
    monkeypatch.setattr(event_feed, "Found", SimpleNamespace(_make=weigh))

    first = read(api, query=query)

    assert 1 < len(first["data"]) < 26
    assert sum(taken) < event_feed.MOST_PAYLOAD + 2**18
    rest = read(api, first["next_after"], query)
    assert [each["data"]["id"] for each in first["data"] + rest["data"]] == made


def test_a_pinned_key_gets_what_is_its_own(api: ApiOf) -> None:
    session, other = make_session(api()), make_session(api())
    mine = make_finding(api(), session["id"])
    make_finding(api(), other["id"])
    body = {"name": "n", "role": "read", "pin": pin_of(session)}
    key = api().post("/v1/keys", body).json["key"]
    data = api(key).get(PATH).json["data"]
    assert [each["data"]["id"] for each in data] == [mine["id"]]


def test_a_reader_older_than_the_history_kept_is_told(
    api: ApiOf, app: Flask, tenant: FreshTenant
) -> None:
    master_keys = app.extensions[EXTENSION].settings.master_keys
    long_ago = ids.earliest_at(clock.now().replace(year=2001))

    def sealed(through: UUID) -> str:
        position = event_feed.Position(through, "1:1:", through).text().encode()
        made = master_keys.seal(position, f"event-feed/{tenant.id}")
        return base64.urlsafe_b64encode(made).rstrip(b"=").decode()

    refused(api().get(f"{PATH}?after={sealed(long_ago)}"), 410, "history-pruned")
    # One that waits for long without an event goes on with the time.
    after = read(api)["next_after"]
    raw = base64.urlsafe_b64decode(after + "=" * (-len(after) % 4))
    position = event_feed.Position.read(master_keys.open(raw, f"event-feed/{tenant.id}").decode())
    assert clock.now() - ids.made_at(position.through) < timedelta(hours=1)


def test_a_position_of_another_tenant_is_refused(api: ApiOf, other_tenant: FreshTenant) -> None:
    after = read(api)["next_after"]
    theirs = api(other_tenant.root_key).get(f"{PATH}?after={after}")
    assert pointers(theirs) == ["/after"]
    assert pointers(api().get(f"{PATH}?after=x")) == ["/after"]
    assert pointers(api().get(f"{PATH}?wait=21")) == ["/wait"]


def test_waiting_holds_no_thread_behind_the_gateway(api: ApiOf, app: Flask) -> None:
    session = make_session(api())
    after = read(api)["next_after"]
    path = f"{PATH}?wait=20&after={after}"
    waits: list[Wait] = []
    api().get(path, environ_overrides={WAIT: waits})
    (wait,) = waits
    assert wait.seconds == 20
    assert wait.ready() is False
    finding = api().post("/v1/findings", finding_of(session["id"])).json
    assert wait.ready() is True
    wait.over()
    again = api().get(path, environ_overrides={WAITED: True}).json
    assert [each["data"]["id"] for each in again["data"]] == [finding["id"]]


def test_at_most_32_requests_of_a_key_and_128_of_a_tenant_wait(
    api: ApiOf, mint: Mint, other_tenant: FreshTenant
) -> None:
    waiting: list[Wait] = []

    def asks(key: str) -> Any:
        """Ask with a key; return the refusal, or None for a request that waits."""
        before = len(waiting)
        answer = api(key).get(f"{PATH}?wait=20", environ_overrides={WAIT: waiting})
        return answer if len(waiting) == before else None

    keys = [mint("read") for _ in range(5)]
    try:
        assert [asks(keys[0]) for _ in range(32)] == [None] * 32
        refused = asks(keys[0])
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "5")
        assert "32 requests of this key" in refused.json["detail"]
        assert [asks(key) for key in keys[1:4] for _ in range(32)] == [None] * 96
        assert "128 requests of this tenant" in asks(keys[4]).json["detail"]
        assert api(keys[4]).get(PATH).status_code == 200
        assert asks(other_tenant.root_key) is None
        # One that has ended, in whatever way, makes room for the next.
        waiting[40].over()
        assert asks(keys[4]) is None
        assert asks(keys[4]).status_code == 429
    finally:
        for begun in waiting[:40] + waiting[41:]:
            begun.over()


def test_without_the_gateway_a_thread_waits(api: ApiOf) -> None:
    session = make_session(api())
    after = read(api)["next_after"]
    arrived: list[Any] = []
    waiter = threading.Thread(
        target=lambda: arrived.append(read(api, after, "wait=20")["data"]), daemon=True
    )
    waiter.start()
    finding = make_finding(api(), session["id"])
    waiter.join(60)
    assert [each["data"]["id"] for each in arrived[0]] == [finding["id"]]


def test_a_key_that_is_revoked_while_it_waits_gets_no_event(
    api: ApiOf, app: Flask, mint: Mint
) -> None:
    session = make_session(api())
    key = mint("read")
    path = f"{PATH}?wait=20&after={read(api)['next_after']}"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(api(key).get, path)
        until(lambda: bool(admission._waiting))
        revoke(api, key)
        make_finding(api(), session["id"])
        refused(waiting.result(), 401, "unauthenticated")
    refused(api(key).get(path, environ_overrides={WAITED: True}), 401, "unauthenticated")
