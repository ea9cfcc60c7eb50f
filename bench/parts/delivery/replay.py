"""An operator after an outage: many failures of three causes on two webhooks, grouped and replayed.

One webhook's receiver is mended, the other's is not. What is replayed is held against what the dry
run confirmed, though more fails the same way meanwhile.
"""

import time
from collections.abc import Generator, Iterator
from typing import Any
from uuid import UUID

import psycopg

from app import ids
from app.core.delivery import retries
from bench.datasets import crowd
from bench.figures import Figure, Reach, median, percentile
from bench.lab import Lab
from bench.processes import BenchError, until
from bench.scale import Scale
from bench.service import Tenant

_CANARY = 20
_DONE_SECONDS = 600.0
_CAUSES = (
    ("refused", 500, None),
    ("refused", 404, None),
    ("timeout", None, "no answer within 15 s"),
)

_MADE = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint - n / 10"
_FAILED = f"""
WITH fresh AS MATERIALIZED (
    SELECT {crowd.ID.format(milliseconds=_MADE)} AS id, clock_timestamp() AS failed_at,
           (%(webhooks)s::uuid[])[1 + n %% cardinality(%(webhooks)s::uuid[])] AS webhook_id,
           (%(outcomes)s::text[])[cause] AS outcome, (%(codes)s::smallint[])[cause] AS status_code,
           (%(errors)s::text[])[cause] AS error, (%(prints)s::bigint[])[cause] AS failure
      FROM generate_series(1, %(count)s) AS n
     CROSS JOIN LATERAL (
        SELECT 1 + n / cardinality(%(webhooks)s::uuid[]) %% cardinality(%(prints)s::bigint[])
            AS cause) AS chosen
), event AS (
    INSERT INTO stored_events (tenant_id, id, type, payload, decisions)
    SELECT %(tenant)s, id, 'finding.created', %(payload)s, '' FROM fresh
), lane AS (
    UPDATE lanes SET next_sequence = next_sequence + failed.count,
                     events_failed = events_failed + failed.count
      FROM (SELECT webhook_id, count(*) FROM fresh GROUP BY 1) AS failed
     WHERE tenant_id = %(tenant)s AND lanes.webhook_id = failed.webhook_id
)
INSERT INTO ended_deliveries
       (tenant_id, id, webhook_id, event_id, event_type, kind, priority, sequence, status, attempts,
        attempted_at, outcome, status_code, failure, created_at, finished_at, error)
SELECT %(tenant)s, id, fresh.webhook_id, id, 'finding.created', 'event', 1,
       next_sequence - 1 + row_number() OVER (PARTITION BY fresh.webhook_id), 'failed', 10,
       failed_at, outcome, status_code, failure, failed_at, failed_at, error
  FROM fresh JOIN lanes ON lanes.tenant_id = %(tenant)s AND lanes.webhook_id = fresh.webhook_id
"""


def run(lab: Lab, scale: Scale) -> Iterator[Figure]:
    """Group failures, replay a group to the mended receiver, try a canary on the other."""
    tenant = lab.service.new_tenant()
    mended = tenant.webhook(lab.stamping.url())
    broken = tenant.webhook(lab.stamping.url("/refuse"))
    _fail(lab, tenant, [mended, broken], scale.failures)
    groups = yield from _grouped(tenant, scale)
    yield from _replayed(lab, tenant, mended, _of(groups, mended))
    yield _canary(lab, tenant, broken, _of(groups, broken))
    for webhook in (mended, broken):
        if not tenant.ask("GET", f"{webhook}/accounting?exact=true")["balanced"]:
            raise BenchError(f"the books of {webhook} do not balance")
        tenant.ask("DELETE", webhook)


def _fail(lab: Lab, tenant: Tenant, webhooks: list[str], count: int, causes: Any = _CAUSES) -> None:
    """Have so many deliveries failed, spread over webhooks and causes, as if just now."""
    outcomes, codes, errors = map(list, zip(*causes, strict=True))
    values = {
        "tenant": tenant.id,
        "webhooks": [_id("whk", path.rpartition("/")[2]) for path in webhooks],
        "outcomes": outcomes,
        "codes": codes,
        "errors": errors,
        "prints": [retries.fingerprint(*cause) for cause in causes],
        "count": count,
        "payload": b'{"data":{"rule":"0"}}',
    }
    with psycopg.connect(lab.postgres.admin_url, autocommit=True) as connection:
        connection.execute(_FAILED.encode(), values)
        connection.execute("ANALYZE ended_deliveries, events")


def _id(prefix: str, text: str) -> UUID:
    found = ids.parse(prefix, text)
    if found is None:
        raise BenchError(f"{text} is no id")
    return found


def _grouped(tenant: Tenant, scale: Scale) -> Generator[Figure, None, Any]:
    times = []
    answer: Any = {}
    for _ in range(scale.repeats):
        began = time.perf_counter()
        answer = tenant.ask("GET", "/v1/deliveries/groups")
        times.append((time.perf_counter() - began) * 1000)
    groups = answer["data"]
    if len(groups) != 2 * len(_CAUSES):
        raise BenchError(f"{len(groups)} groups of {len(_CAUSES)} causes on 2 webhooks")
    words = f"groups of {scale.failures} failures, p95"
    note = f"p50 {median(times):.0f} ms, {len(groups)} groups of the newest {answer['window']}"
    yield Figure(words, percentile(times, 95), " ms", note=note)
    return groups


def _of(groups: Any, webhook: str) -> str:
    """Return the group of a webhook's failures with status 500."""
    (found,) = [
        each["group"]
        for each in groups
        if webhook.endswith(each["webhook_id"]) and each["status_code"] == _CAUSES[0][1]
    ]
    return str(found)


def _replayed(lab: Lab, tenant: Tenant, webhook: str, group: str) -> Iterator[Figure]:
    began = time.perf_counter()
    shown = tenant.ask("POST", f"{webhook}/replay", {"group": group, "dry_run": True})
    count, took = shown["count"], (time.perf_counter() - began) * 1000
    yield Figure(f"dry run of a group of {count}", took, " ms")
    more = count // 10
    _fail(lab, tenant, [webhook], more, _CAUSES[:1])
    arrived, began = lab.stamping.count(), time.perf_counter()
    body = {"group": group, "as_of": shown["as_of"]}
    job = tenant.ask("POST", f"{webhook}/replay", body)
    _fail(lab, tenant, [webhook], more, _CAUSES[:1])
    ended = _wait(tenant, job)
    seconds = time.perf_counter() - began
    progress, posts = ended["progress"], lab.stamping.count() - arrived
    counts = (progress["selected"], progress["sent"], progress["succeeded"], posts)
    if ended["status"] != "succeeded" or set(counts) != {count}:
        raise BenchError(f"{count} were confirmed: {ended['status']}, {progress}, {posts} arrived")
    left = tenant.ask("POST", f"{webhook}/replay", {"group": group, "dry_run": True})["count"]
    if left != 2 * more:
        raise BenchError(f"{left} are left of {2 * more} that failed meanwhile")
    note = f"{count} confirmed, {posts} arrived, {left} that failed meanwhile were left"
    yield Figure("deliveries of a group replayed", count / seconds, "/s", note=note)


def _canary(lab: Lab, tenant: Tenant, webhook: str, group: str) -> Figure:
    arrived = lab.stamping.count()
    body = {"group": group, "canary": _CANARY}
    ended = _wait(tenant, tenant.ask("POST", f"{webhook}/replay", body))
    posts = lab.stamping.count() - arrived
    if ended["status"] != "cancelled" or "canary" not in ended["error"]:
        raise BenchError(f"the canary ended as {ended['status']}: {ended['error']}")
    words = f"POSTs to a receiver that still fails, of {ended['progress']['selected']}"
    return Figure(words, posts, "", None, Reach(at_least=1, at_most=_CANARY), ended["error"])


def _wait(tenant: Tenant, job: Any) -> Any:
    """Wait until a job has ended; return it."""

    def read() -> Any:
        return tenant.ask("GET", f"/v1/jobs/{job['id']}")

    open_ones = ("queued", "running", "retrying")
    until(lambda: read()["status"] not in open_ones, _DONE_SECONDS, "the replay has ended")
    return read()
