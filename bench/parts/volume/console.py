"""Every page of the console over a million deliveries and a million records: the server's time.

In this process, from the request to the last byte of the page; the browser's time is left out.
Pages are found as people find them: by the links of other pages, one address of each endpoint and
set of filters. Searches and the pages of large records are added.
"""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from html import unescape
from random import Random
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from flask import Flask
from flask.testing import FlaskClient
from werkzeug.exceptions import HTTPException

from app import ids
from app.api.http.auth import access_rule
from app.api.http.services import EXTENSION
from app.core import word_index
from app.core.records import search
from app.web import create_app
from bench.datasets import company
from bench.datasets.company import Company
from bench.figures import Bound, Figure, Reach, p95
from bench.lab import Lab
from bench.pace import milliseconds
from bench.processes import BenchError
from bench.scale import Scale

_QUICK = Reach(at_most=100)
_HERE = {"Sec-Fetch-Site": "same-origin"}
_BARE = "/console/webhooks/new"
_TOKEN = re.compile(r'name="_token" value="([^"]+)"')
_LINK = re.compile(r'href="(/console/[^"#]+)')
_SEARCHES = 20
_STEPS = 20_000
# They lead elsewhere, send a file, or have nothing to show here.
_NO_PAGES = re.compile(r"home|.*\.download.*|people\.show|traces\.show|receivers\.checked")
# Lists under filters that no link has.
_FILTERED = (
    "deliveries?status=failed",
    "deliveries?status_code=503",
    "deliveries/groups",
    "replays/new?status=skipped",
    "records?label=team%3At3",
    "findings?rule=r3",
    "audit?action=key.mint",
    "audit?outcome=refused&action=access",
    "jobs?kind=bulk_replay&status=dead",
    "jobs/all?verb=retry",
    "holds?status=standing",
    "time-zone",
    "views",
)
_RULE = {
    "name": "large-refund",
    "on": "record",
    "when": "content.amount > 1000",
    "severity": "high",
    "title": "{{content.amount}} for {{record.principal}}",
}
_PERIOD = {"since": "2026-01-01T00:00:00Z", "until": "2026-01-02T00:00:00Z"}


@dataclass(frozen=True)
class _Visit:
    """Addresses of a page, taken in turns, and the form that is posted there."""

    paths: Sequence[str]
    form: Mapping[str, str] | None = None


def run(lab: Lab, scale: Scale) -> Iterator[Figure]:
    """Time every page for a tenant with a long past, beside a page that shows nothing of it."""
    with lab.migrated() as (settings, database):
        began = time.perf_counter()
        made = company.make(lab, settings, database, scale)
        filled = time.perf_counter() - began
        yield Figure(f"a tenant with {scale.records} records filled in", filled, " s")
        app = create_app(replace(settings, log_level="WARNING"))
        try:
            client = app.test_client()
            _asked(client, _Visit(["/console/sign-in"], {"key": made.key}))
            visits = _visits(app, client, made)
            bound: Bound | None = None
            for name, visit in visits.items():
                times = [
                    milliseconds(partial(_asked, client, visit, n)) for n in range(scale.repeats)
                ]
                words = f"{name}, {scale.records} deliveries and records"
                yield (figure := p95(words, times, bound, _QUICK))
                bound = bound or Bound(name, figure.value)
        finally:
            app.extensions[EXTENSION].close()


def _asked(client: FlaskClient, visit: _Visit, number: int = 0) -> str:
    path = visit.paths[number % len(visit.paths)]
    if visit.form is None:
        answer = client.get(path)
    else:
        answer = client.post(path, data=visit.form, headers=_HERE)
    # A search that finds one thing leads to it, and so does a form.
    leads_on = answer.status_code == 303 and "sign-in" not in answer.headers["Location"]
    if answer.status_code != 200 and not leads_on:
        raise BenchError(f"{path} answers {answer.status_code}")
    return answer.text


def _visits(app: Flask, client: FlaskClient, made: Company) -> dict[str, _Visit]:
    """Return every page by the name of its figure, first the one that shows nothing of the past.

    Raises `BenchError` where the console has a page that no link leads to.
    """
    large = _provide(app, client, made)
    # Bundles of the past are no sealed bytes.
    record = f"/console/records/{large}"
    found = {"webhooks.new": _Visit([_BARE]), "records.show": _Visit([record])}
    _follow(app, client, found, ["/console/overview", *(f"/console/{at}" for at in _FILTERED)])
    pages = {
        rule.endpoint.removeprefix("console.")
        for rule in app.url_map.iter_rules()
        if rule.rule.startswith("/console/")
        and "GET" in (rule.methods or ())
        and (access := access_rule(app.view_functions[rule.endpoint]))
        and access.role
    }
    visited = {name.split()[0] for name in found}
    if missing := sorted(each for each in pages - visited if not _NO_PAGES.fullmatch(each)):
        raise BenchError(f"no link leads to {', '.join(missing)}")
    token = _TOKEN.search(client.get(_BARE).text)
    if token is None:
        raise BenchError("the form of a new webhook has no token")
    found["records.show later steps of 20,000"] = _Visit([f"{record}?steps=10000"])
    return found | _searches(made) | _forms(token[1])


def _provide(app: Flask, client: FlaskClient, made: Company) -> str:
    """Make one of each thing that the past has not, and index it; return a large record's id."""
    agent, moment = made.books.agents[0], "2026-01-01T00:00:00Z"
    step = {"kind": "tool", "started_at": moment, "ended_at": moment, "status": "ok"}
    record = {
        "session_id": ids.text("ses", agent),
        "kind": "decision",
        "title": "a record with steps",
        "content": {"words": "x" * 20_000},
        "occurred_at": moment,
        "steps": [{**step, "name": f"step {n}", "attributes": {"n": n}} for n in range(_STEPS)],
    }
    bodies: dict[str, Mapping[str, Any]] = {
        "holds": {"reason": "bench", "agent_id": ids.text("agt", agent)},
        "rules": _RULE,
        "exports": _PERIOD,
        "records": record,
    }
    large = ""
    for name, body in bodies.items():
        headers = {"Authorization": f"Bearer {made.key}"}
        answer = client.post(f"/v1/{name}", json=body, headers=headers)
        if answer.status_code not in (201, 202):
            raise BenchError(f"/v1/{name} answers {answer.status_code}: {answer.text}")
        large = str(answer.get_json()["id"])
    service = app.extensions[EXTENSION]
    # As the worker does each ten seconds.
    with service.database.transaction(made.tenant_id) as session:
        source = search.source(service.settings.master_keys)
        word_index.index_piece(session, source, made.tenant_id, ids.new())
    return large


def _follow(
    app: Flask, client: FlaskClient, found: dict[str, _Visit], addresses: list[str]
) -> None:
    """Add the pages at these addresses, and what their links lead to."""
    routes = app.url_map.bind("")
    for path in addresses:
        parts = urlsplit(path)
        try:
            endpoint, _ = routes.match(parts.path, method="GET")
        except HTTPException:
            continue
        name = str(endpoint).removeprefix("console.")
        filters = ", ".join(sorted(parse_qs(parts.query)))
        name += f" by {filters}" if filters else ""
        if name in found or _NO_PAGES.fullmatch(name.split()[0]):
            continue
        found[name] = visit = _Visit([path])
        # A page that is visited adds to those that are still to be.
        addresses += [unescape(each) for each in _LINK.findall(_asked(client, visit))]


def _searches(made: Company) -> dict[str, _Visit]:
    chance = Random(7)
    agent = ids.text("agt", made.books.agents[0])

    def searched(path: str, words: int, **more: str) -> _Visit:
        typed = [" ".join(made.books.word(chance) for _ in range(words)) for _ in range(_SEARCHES)]
        return _Visit([f"/console/{path}?{urlencode({'q': each, **more})}" for each in typed])

    found = {
        f"{path} with q of {words} words": searched(path, words)
        for path in ("records", "findings", "sessions", "agents", "search")
        for words in (1, 2)
    }
    return {
        **found,
        "records with q of an agent": searched("records", 1, agent_id=agent),
        "findings with q and severity": searched("findings", 1, severity="high"),
    }


def _forms(token: str) -> dict[str, _Visit]:
    """Return forms that show what they would do, and change nothing."""

    def sent(path: str, **typed: str) -> _Visit:
        return _Visit([f"/console/{path}"], {"_token": token, "_key": "bench", **typed})

    return {
        "settings.change, which says what it deletes": sent("settings", bundle_retention_days="30"),
        "replays.count": sent("replays/new/count", rate="50"),
    }
