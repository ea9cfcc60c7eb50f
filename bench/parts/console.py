"""Pages of the console over a million deliveries and a million records: the server's time for each.

In this process, from the request to the last byte of the page; the browser's time is left out.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from uuid import UUID

from flask import Flask
from flask.testing import FlaskClient

from app import ids
from app.api.http.access.auth import access_rule
from app.api.http.services import EXTENSION
from app.core.webhooks import webhook_secrets
from app.core.webhooks.webhook_secrets import Secret
from app.database import Database, cursor
from app.lib.crypto import api_keys, webhook_signing
from app.settings import Settings
from app.web import create_app
from bench import library, past
from bench.figures import Figure, Reach, median, percentile
from bench.lab import Lab
from bench.past import Past
from bench.processes import BenchError
from bench.scale import Scale

_QUICK = Reach(at_most=100)
_HERE = {"Sec-Fetch-Site": "same-origin"}
_KEY = """
INSERT INTO api_keys (tenant_id, id, name, role, digest) VALUES (%s, %s, 'bench', 'admin', %s)
"""


def run(lab: Lab, scale: Scale) -> Iterator[Figure]:
    """Time every page without an id on both tenants, and those of a delivery and a webhook."""
    with lab.migrated() as (settings, database):
        made = past.make(settings, database, scale.records, scale.webhooks)
        books = library.make(settings, database, scale.records)
        _give_secrets(settings, database, made)
        app = create_app(replace(settings, log_level="WARNING"))
        try:
            lists = _lists(app)
            visits = (
                (made.tenant_id, "deliveries", [*lists, *_of_deliveries(database, made)]),
                (books.tenant_id, "records", lists),
            )
            for tenant_id, name, paths in visits:
                client = _signed_in(app, database, tenant_id)
                for path in paths:
                    times = [_timed(client, path) for _ in range(scale.repeats)]
                    yield _figure(path, f"{scale.records} {name}", times)
        finally:
            app.extensions[EXTENSION].close()


def _figure(path: str, size: str, times: Sequence[float]) -> Figure:
    note = f"p50 {median(times):.1f}, worst {max(times):.1f} ms"
    name = f"{path[:60]}, {size}, p95"
    return Figure("console", name, percentile(times, 95), " ms", None, _QUICK, note)


def _timed(client: FlaskClient, path: str) -> float:
    began = time.perf_counter()
    answer = client.get(path)
    took = (time.perf_counter() - began) * 1000
    if answer.status_code != 200:
        raise BenchError(f"{path} answers {answer.status_code}")
    return took


def _lists(app: Flask) -> list[str]:
    """Return the pages that need no id."""
    return sorted(
        rule.rule
        for rule in app.url_map.iter_rules()
        if rule.rule.startswith("/console/")
        and "GET" in (rule.methods or ())
        and not rule.arguments
        and (access := access_rule(app.view_functions[rule.endpoint]))
        and access.role
    )


def _of_deliveries(database: Database, made: Past) -> list[str]:
    webhook = ids.text("whk", made.webhooks[0])
    with database.transaction(made.tenant_id) as session:
        query = "SELECT id FROM deliveries WHERE webhook_id = %s ORDER BY id DESC LIMIT 1"
        row = cursor(session).execute(query, (made.webhooks[0],)).fetchone()
    delivery = ids.text("dlv", row[0]) if row else ""
    return [
        "/console/deliveries?status=failed",
        f"/console/deliveries?webhook_id={webhook}&status=failed&outcome=refused",
        f"/console/deliveries/groups?webhook_id={webhook}",
        "/console/replays/new?status=failed",
        f"/console/webhooks/{webhook}",
        f"/console/webhooks/{webhook}/deliveries/{delivery}",
    ]


def _signed_in(app: Flask, database: Database, tenant_id: UUID) -> FlaskClient:
    key = api_keys.new()
    with database.transaction(tenant_id) as session:
        cursor(session).execute(_KEY, (tenant_id, ids.new(), api_keys.digest(key)))
    client = app.test_client()
    answer = client.post("/console/sign-in", data={"key": key}, headers=_HERE)
    if answer.status_code != 303:
        raise BenchError(f"signing in answers {answer.status_code}")
    return client


def _give_secrets(settings: Settings, database: Database, made: Past) -> None:
    """Seal a secret for the webhook that is looked at; those of a crowd have none."""
    one = made.webhooks[0]
    fresh = [Secret(webhook_signing.new_secret())]
    sealed = webhook_secrets.seal(settings.master_keys, made.tenant_id, one, fresh)
    with database.transaction(made.tenant_id) as session:
        cursor(session).execute(
            "UPDATE webhooks SET sealed_secrets = %s WHERE id = %s", (sealed, one)
        )
