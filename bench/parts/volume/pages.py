"""The pages of the console that the bench visits: each at least once, by its endpoint's name."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from flask import Flask
from flask.testing import FlaskClient

from app import ids
from app.api.http.auth import access_rule
from app.api.http.services import EXTENSION
from app.core.callers import Caller, Person, Role
from app.core.delivery.history import failure_groups
from app.core.delivery.history.delivery_list import Filters
from app.core.keys import groups
from app.core.keys.console_sessions import Token
from app.core.records import search
from app.core.words import word_index
from app.database import Database, cursor
from bench.datasets.company import Company
from bench.processes import BenchError

HERE = {"Sec-Fetch-Site": "same-origin"}
_BARE = "webhooks.new"
# They lead elsewhere, or send a file.
_NO_PAGES = frozenset(
    {"console.home", "console.records.download", "console.sessions.download"}
    | {"console.exports.download"}
)
_FILES = ".download_list"
_SEARCHES = 20
_STEPS, _MANY_STEPS = 200, 20_000
_TOKEN = re.compile(r'name="_token" value="([^"]+)"')

_NEWEST = {
    "finding": ("fnd", "SELECT id FROM findings ORDER BY id DESC LIMIT 1"),
    "session": ("ses", "SELECT session_id FROM records ORDER BY id DESC LIMIT 1"),
    "agent": ("agt", "SELECT agent_id FROM records ORDER BY id DESC LIMIT 1"),
    "event": (
        "evt",
        "SELECT id FROM events ORDER BY id DESC LIMIT 1",
    ),
}
_RULE = {
    "name": "large-refund",
    "on": "record",
    "when": "content.amount > 1000",
    "severity": "high",
    "title": "{{content.amount}} for {{record.principal}}",
}
_PERIOD = {"since": "2026-01-01T00:00:00Z", "until": "2026-01-02T00:00:00Z"}
_FAILED = """
SELECT id, event_id FROM deliveries
 WHERE webhook_id = %s AND kind = 'event' AND status = 'failed' ORDER BY id DESC LIMIT 1
"""


@dataclass(frozen=True)
class Visit:
    """Addresses of a page, taken in turns, and the form that is posted there."""

    paths: Sequence[str]
    form: Mapping[str, str] | None = None


def visits(app: Flask, client: FlaskClient, database: Database, made: Company) -> dict[str, Visit]:
    """Return every page by the name of its figure, first the one that shows nothing of the past.

    Raises `BenchError` where the console has a page that is not among them.
    """
    token = _TOKEN.search(client.get("/console/webhooks/new").text)
    if token is None:
        raise BenchError("the form of a new webhook has no token")
    names = _named(database, made) | {
        "record": _record(client, made, _STEPS),
        "large": _record(client, made, _MANY_STEPS),
    }
    # As the worker does each ten seconds.
    source = search.source(app.extensions[EXTENSION].settings.master_keys)
    with database.transaction(made.tenant_id) as session:
        word_index.index_piece(session, source, made.tenant_id, ids.new())
    found = {
        _BARE: Visit(["/console/webhooks/new"]),
        **_of_deliveries(names),
        **_of_records(made, names),
        **_of_the_rest(client, database, made),
        **_forms(token[1], names),
    }
    _require_all(app, found)
    return found


def _named(database: Database, made: Company) -> dict[str, str]:
    """Return the ids that the pages show, as the console writes them."""
    one, broken = made.past.webhooks[:2]
    with database.transaction(made.tenant_id) as session:
        cur = cursor(session)
        names = {
            name: ids.text(prefix, _one(cur.execute(query).fetchone()))
            for name, (prefix, query) in _NEWEST.items()
        }
        delivery, event = cur.execute(_FAILED, (one,)).fetchone() or (None, None)
        causes = failure_groups.find(session, made.tenant_id, Filters(webhook_id=broken)).groups
    if delivery is None or event is None or not causes:
        raise BenchError("nothing has failed")
    failed = failure_groups.represent(failure_groups.Groups(causes, complete=True))
    return {
        **names,
        "webhook": ids.text("whk", one),
        "broken": ids.text("whk", broken),
        "delivery": ids.text("dlv", delivery),
        "failed_event": ids.text("evt", event),
        "group": failed["data"][0]["group"],
        "replay": ids.text("job", made.replay),
        "check": ids.text("job", made.check),
        "key": ids.text("key", made.key_id),
    }


def _one(row: Any) -> UUID:
    if row is None:
        raise BenchError("a table of the company is empty")
    found: UUID = row[0]
    return found


def _record(client: FlaskClient, made: Company, count: int) -> str:
    """Push a record with so many steps, as its bundle is shown too; return its id."""
    moment = "2026-01-01T00:00:00Z"
    step = {"kind": "tool", "started_at": moment, "ended_at": moment, "status": "ok"}
    steps = [{**step, "name": f"step {n}", "attributes": {"n": n}} for n in range(count)]
    body = {
        "session_id": ids.text("ses", made.books.agents[0]),
        "kind": "decision",
        "title": "a record with steps",
        "occurred_at": moment,
        "content": {"words": "x" * 20_000},
        "steps": steps,
    }
    return _made(client, made, "/v1/records", body)


def _at(path: str, **query: str) -> Visit:
    return Visit([f"/console/{path}{'?' if query else ''}{urlencode(query)}"])


def _of_deliveries(names: Mapping[str, str]) -> dict[str, Visit]:
    webhook, broken = names["webhook"], names["broken"]
    one = f"webhooks/{webhook}"
    return {
        "overview.index": _at("overview"),
        "overview.index by day": _at("overview", step="day"),
        "deliveries.index": _at("deliveries"),
        "deliveries.index failed": _at("deliveries", status="failed"),
        "deliveries.index open": _at("deliveries", status="retrying"),
        "deliveries.index of a webhook": _at(
            "deliveries", webhook_id=webhook, status="failed", outcome="refused"
        ),
        "deliveries.index of a group": _at("deliveries", group=names["group"]),
        "deliveries.index of an event": _at("deliveries", event_id=names["event"]),
        "deliveries.index by status code": _at("deliveries", status_code="503"),
        "deliveries.groups": _at("deliveries/groups"),
        "deliveries.groups of a webhook": _at("deliveries/groups", webhook_id=webhook),
        "deliveries.groups of the broken webhook": _at("deliveries/groups", webhook_id=broken),
        "deliveries.show": _at(f"{one}/deliveries/{names['delivery']}"),
        "replays.index": _at("replays"),
        "replays.new": _at("replays/new"),
        "replays.new of the broken webhook": _at("replays/new", webhook_id=broken),
        "replays.new of a group": _at("replays/new", group=names["group"]),
        "replays.new of what was skipped": _at("replays/new", webhook_id=webhook, status="skipped"),
        "replays.show": _at(f"replays/{names['replay']}"),
        "webhooks.index": _at("webhooks"),
        "webhooks.show": _at(one),
        "webhooks.show the broken one": _at(f"webhooks/{broken}"),
        "events.show": _at(f"events/{names['failed_event']}"),
        "receivers.signature": _at(f"{one}/signature"),
        "receivers.checked": _at(f"{one}/checks/{names['check']}"),
    }


def _of_records(made: Company, names: Mapping[str, str]) -> dict[str, Visit]:
    chance = Random(7)

    def searched(path: str, words: int, **more: str) -> Visit:
        queries = [
            " ".join(made.books.word(chance) for _ in range(words)) for _ in range(_SEARCHES)
        ]
        return Visit([_at(path, q=each, **more).paths[0] for each in queries])

    agent = names["agent"]
    return {
        "records.index": _at("records"),
        "records.index with q": searched("records", 1),
        "records.index with q of two words": searched("records", 2),
        "records.index with q of an agent": searched("records", 1, agent_id=agent),
        "records.index of a session": _at("records", session_id=names["session"]),
        "records.index with a label": _at("records", label="team:t3"),
        "records.show": _at(f"records/{names['record']}"),
        "records.show later steps of 20,000": _at(f"records/{names['large']}", steps="10000"),
        "sessions.index": _at("sessions"),
        "sessions.index with q": searched("sessions", 1),
        "sessions.index of an agent": _at("sessions", agent_id=agent),
        "sessions.show": _at(f"sessions/{names['session']}"),
        "agents.index": _at("agents"),
        "agents.index with q": searched("agents", 1),
        "agents.show": _at(f"agents/{agent}"),
        "traces.index": _at("traces"),
        "findings.index": _at("findings"),
        "findings.index with q": searched("findings", 1),
        "findings.index with q of two words": searched("findings", 2),
        "findings.index with q and severity": searched("findings", 1, severity="high"),
        "findings.index by rule": _at("findings", rule="r3"),
        "findings.show": _at(f"findings/{names['finding']}"),
        "search.index": _at("search"),
        "search.index with q": searched("search", 1),
        "search.index with q of two words": searched("search", 2),
    }


def _made(client: FlaskClient, made: Company, path: str, body: Mapping[str, Any]) -> str:
    """Make something by the API; return its id."""
    answer = client.post(path, json=body, headers={"Authorization": f"Bearer {made.key}"})
    if answer.status_code not in (201, 202):
        raise BenchError(f"{path} answers {answer.status_code}: {answer.text}")
    return str(answer.get_json()["id"])


def _person(database: Database, made: Company) -> str:
    """Have a person sign in; return their id."""
    person = Person("https://id.test", "bench", "Bench", "bench@example.com")
    caller = Caller(made.tenant_id, person.id, Role.READ, None, "bench", person=person)
    with database.transaction(made.tenant_id) as session:
        groups.change(session, made.tenant_id, {"everybody": Role.READ})
        Token.new(made.tenant_id).begin(session, caller, timedelta(hours=1), ["everybody"])
    return ids.text("usr", person.id)


def _of_the_rest(client: FlaskClient, database: Database, made: Company) -> dict[str, Visit]:
    key = ids.text("key", made.key_id)
    held = {"reason": "bench", "agent_id": ids.text("agt", made.books.agents[0])}
    hold = _made(client, made, "/v1/holds", held)
    rule = _made(client, made, "/v1/rules", _RULE)
    export = _made(client, made, "/v1/exports", _PERIOD)
    return {
        "holds.index": _at("holds", status="standing"),
        "holds.show": _at(f"holds/{hold}"),
        "audit.index": _at("audit"),
        "audit.index by action": _at("audit", action="key.mint"),
        "audit.index of a key": _at("audit", actor=key),
        "audit.index refused": _at("audit", outcome="refused", action="access"),
        "audit.anchor_list": _at("audit/anchors"),
        "keys.index": _at("keys"),
        "keys.show": _at(f"keys/{key}"),
        "jobs.index": _at("jobs"),
        "jobs.index dead": _at("jobs", status="dead"),
        "jobs.index of a kind": _at("jobs", kind="bulk_replay", status="dead"),
        "jobs.show": _at(f"jobs/{ids.text('job', made.replay)}"),
        "settings.mail": _at("mail"),
        "settings.index": _at("settings"),
        "alerts.index": _at("alerts"),
        "audit.verify_again": _at("audit/verify"),
        "exports.index": _at("exports"),
        "exports.show": _at(f"exports/{export}"),
        "jobs.preview_all": _at("jobs/all", verb="retry"),
        "people.index": _at("sign-ins"),
        "people.show": _at(f"people/{_person(database, made)}"),
        "rules.index": _at("rules"),
        "rules.new": _at("rules/new"),
        "rules.show": _at(f"rules/{rule}"),
        "rules.version": _at(f"rules/{rule}/versions/1"),
        "time_zone.ask": _at("time-zone"),
        "views.index": _at("views"),
    }


def _forms(token: str, names: Mapping[str, str]) -> dict[str, Visit]:
    """Return forms that show what they would do, and change nothing."""

    def sent(path: str, **typed: str) -> Visit:
        return Visit([f"/console/{path}"], {"_token": token, "_key": "bench", **typed})

    pasted = f"webhook-id: {names['event']}\nwebhook-timestamp: 1\nwebhook-signature: v1,x"
    return {
        "settings.change, which says what it deletes": sent("settings", bundle_retention_days="30"),
        "replays.count": sent("replays/new/count", rate="50"),
        "receivers.signature, which is checked": sent(
            f"webhooks/{names['webhook']}/signature", headers=pasted, body="{}"
        ),
    }


def _require_all(app: Flask, found: Mapping[str, Visit]) -> None:
    """Raise `BenchError` where a page is not visited."""
    visited = {f"console.{name.split(',')[0].split()[0]}" for name in found}
    pages = {
        rule.endpoint
        for rule in app.url_map.iter_rules()
        if rule.rule.startswith("/console/")
        and "GET" in (rule.methods or ())
        and (access := access_rule(app.view_functions[rule.endpoint]))
        and access.role
        and not rule.endpoint.endswith(_FILES)
    }
    if missing := sorted(pages - visited - _NO_PAGES):
        raise BenchError(f"these pages are not visited: {', '.join(missing)}")
