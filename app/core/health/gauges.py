"""Gauges of `/metrics`: current figures over all tenants, each family by its name and help text.

Alerts and dashboards depend on the names: add, never rename. They come from stored data, by indexes
with few rows beyond those counted, and need no worker: after a restore they show how far behind the
database is.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from psycopg.rows import dict_row, scalar_row
from sqlalchemy.orm import Session

from app import ids
from app.core.anchoring import anchors as anchoring_status
from app.core.anchoring import monitor
from app.core.anchoring.evidence import Voucher
from app.core.delivery.lanes.lane_health import REFUSES
from app.core.digests import schedule
from app.core.health.parts import Gauge
from app.core.master_keys import key_registry
from app.core.verification import daily
from app.database import cursor, database_now
from app.errors import LogHalted
from app.heartbeats import Process
from app.settings import VERSION, Settings

# The sweep rings each second, and turns at a lane with a backlog follow within seconds.
OVERDUE = timedelta(seconds=60)
# The count of waiting leaves stops here.
MOST_COUNTED = 100_000
# Shown as 0 while the log is in order: an alert must not wait for a series to begin.
_HALTS = tuple(sorted({each.slug for each in LogHalted.__subclasses__()}))
_JOBS = ("queued", "running", "retrying", "dead")


_TOTALS: Final = {
    "lanes_due": "Lanes with something to send now.",
    "lanes_overdue": "Lanes with something to send for over a minute.",
    "lanes_paused": "Lanes that wait because their receiver failed.",
    "oldest_due_seconds": "How long the longest due lane has been due.",
    "oldest_job_due_seconds": "How long the longest due job is due.",
    "oldest_rule_work_seconds": "How long a record or session has waited for its rules.",
    "rules_failing": "Rules that are on, and had an error within a day.",
    "oldest_digest_seconds": "Age of the oldest open digest.",
    "oldest_trace_due_seconds": "How long the longest due trace waits to be assembled.",
    "spans_staged_bytes": "Bytes of spans that wait to be assembled.",
    "objects_unerased_seconds": "How long the longest due object has not been erased.",
    "unanchored": "Parts of anchoring that fail.",
    "witness_alarms": "Witnesses that saw another log of our name.",
    "unanchored_seconds": "How long the oldest of them has failed.",
    "checkpoint_waiting_seconds": "How long a signed checkpoint has waited for its quorum of"
    " witnesses.",
    "audit_chains_broken_now": "Tenants whose audit chain is broken.",
    "audit_chains_unknown": "Chains in the log that no tenant has.",
    "history_rolled_back": "1 while a loss of what was accepted is not accepted.",
    "logs_unverified": "1 while the stored log does not match the published log.",
}
# Lanes and digests of suspended tenants wait on purpose and are not counted, as in `sweeping`.
# New deliveries do not make their lane due, so without the sweep no due lane would show them: those
# that it has not looked at are read (as in `sweeping`).
_READ_TOTALS = """
WITH unseen AS (
    SELECT tenant_id, webhook_id, min(next_attempt_at) AS next_attempt_at
      FROM (SELECT * FROM open_deliveries
             WHERE next_attempt_at >= (SELECT through FROM sweeps)
               AND next_attempt_at <= (SELECT clock_timestamp()) AND fresh AND sequence IS NULL
             ORDER BY next_attempt_at OFFSET 0) AS fresh
     GROUP BY tenant_id, webhook_id
), present AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), suspended AS MATERIALIZED (
    SELECT id FROM tenants WHERE suspended_at IS NOT NULL
), waiting AS (
    (SELECT l.tenant_id, l.webhook_id, l.due_at FROM lanes AS l
      WHERE l.look_at >= (SELECT lanes_through FROM sweeps)
        AND l.due_at <= (SELECT now FROM present) ORDER BY l.look_at OFFSET 0)
    UNION ALL
    SELECT u.tenant_id, u.webhook_id, greatest(u.next_attempt_at, l.paused_until)
      FROM unseen AS u
      JOIN present_lanes AS l ON l.tenant_id = u.tenant_id AND l.webhook_id = u.webhook_id
), due AS (
    SELECT (SELECT now FROM present) - min(due_at) AS age FROM waiting
     WHERE due_at <= (SELECT now FROM present)
       AND tenant_id NOT IN (SELECT id FROM suspended) GROUP BY tenant_id, webhook_id
), open_job AS (
    SELECT status, (SELECT now FROM present) - greatest(run_at, locked_until) AS age
      FROM jobs WHERE finished_at IS NULL
)
SELECT lane.*, job.*, incident.*, broken.*, trace.*,
       (SELECT count(*) FROM lanes
         WHERE (held_since IS NOT NULL OR paused_until IS NOT NULL)
           AND paused_until > (SELECT now FROM present)) AS lanes_paused,
       (SELECT coalesce(sum(webhooks), 0)::bigint FROM webhook_counts
         WHERE status = 'enabled') AS webhooks_enabled,
       (SELECT coalesce(sum(webhooks), 0)::bigint FROM webhook_counts
         WHERE status = 'disabled') AS webhooks_disabled,
       (SELECT count(*) FROM jobs WHERE status = 'dead') AS jobs_dead,
       (SELECT count(*) FROM epochs WHERE accepted_at IS NULL) AS history_rolled_back,
       (SELECT greatest(coalesce(extract(epoch FROM (SELECT now FROM present) - min(claimed_at)),
                                 0), 0)::float8
          FROM digests WHERE status IN ('pending', 'sending')
           AND refusal IS DISTINCT FROM 'recipient'
           AND tenant_id NOT IN (SELECT id FROM suspended)) AS oldest_digest_seconds,
       (SELECT greatest(coalesce(extract(epoch FROM (SELECT now FROM present) - min(oldest.at)), 0),
                        0)::float8
          FROM rule_turns AS t CROSS JOIN LATERAL (
               SELECT w.at FROM rule_work AS w
                WHERE w.tenant_id = t.tenant_id ORDER BY w.at LIMIT 1) AS oldest
         WHERE t.tenant_id NOT IN (SELECT id FROM suspended)) AS oldest_rule_work_seconds,
       (SELECT greatest(coalesce(extract(epoch FROM (SELECT now FROM present) - min(due_at)), 0),
                        0)::float8 FROM dead_blobs) AS objects_unerased_seconds,
       (SELECT count(*) FROM rules
         WHERE enabled AND erred_at > (SELECT now FROM present) - interval '1 day')
           AS rules_failing,
       (SELECT coalesce(extract(epoch FROM (SELECT now FROM present) - min(signed_at)), 0)::float8
          FROM checkpoints WHERE note IS NULL
           AND generation = (SELECT max(generation) FROM log_generations))
           AS checkpoint_waiting_seconds
  FROM (SELECT count(*) AS lanes_due,
               count(*) FILTER (WHERE age > %(overdue)s) AS lanes_overdue,
               coalesce(extract(epoch FROM max(age)), 0)::float8 AS oldest_due_seconds
          FROM due) AS lane
 CROSS JOIN (
       SELECT count(*) FILTER (WHERE status = 'queued') AS jobs_queued,
              count(*) FILTER (WHERE status = 'running') AS jobs_running,
              count(*) FILTER (WHERE status = 'retrying') AS jobs_retrying,
              greatest(coalesce(extract(epoch FROM max(age)), 0), 0)::float8
                  AS oldest_job_due_seconds
         FROM open_job) AS job
 CROSS JOIN (
       SELECT greatest(coalesce(extract(epoch FROM (SELECT now FROM present) - min(due_at)), 0),
                       0)::float8 AS oldest_trace_due_seconds,
              coalesce(sum(staged_bytes), 0)::float8 AS spans_staged_bytes
         FROM traces WHERE status = 'staged') AS trace
 CROSS JOIN (
       SELECT count(*) AS unanchored, count(*) FILTER (WHERE alarm) AS witness_alarms,
              coalesce(extract(epoch FROM (SELECT now FROM present) - min(since)), 0)::float8
                  AS unanchored_seconds
         FROM anchoring_troubles) AS incident
 CROSS JOIN (
       SELECT count(DISTINCT tenant_id) FILTER (WHERE subject = '') AS audit_chains_broken_now,
              count(DISTINCT subject) FILTER (WHERE subject NOT IN ('', 'log'))
                  AS audit_chains_unknown,
              count(DISTINCT subject) FILTER (WHERE subject = 'log') AS logs_unverified
         FROM audit_breaks WHERE healed_at IS NULL) AS broken
"""


def limit_time(session: Session) -> None:
    """Have each statement of this transaction end after five seconds: a scrape adds no load."""
    cursor(session).execute("SET LOCAL statement_timeout = '5s'")


def read_totals(session: Session) -> dict[str, float]:
    """Return the totals by name, in a session that sees every tenant; 0 where nothing is due."""
    return _row(session, _READ_TOTALS, {"overdue": OVERDUE})


def _row(session: Session, query: str, values: Mapping[str, Any]) -> dict[str, Any]:
    row = cursor(session, dict_row).execute(query.encode(), values).fetchone()
    if row is None:
        raise LookupError("a query of totals has one row")
    return row


def _totals(session: Session, _: Settings) -> Iterator[Gauge]:
    """Yield the totals of the whole stack: due, paused, disabled, dead or broken."""
    now = read_totals(session)
    for name, text in _TOTALS.items():
        yield Gauge(name, text, {(): now[name]})
    webhooks = {(status,): now[f"webhooks_{status}"] for status in ("enabled", "disabled")}
    yield Gauge("webhooks", "Webhooks by status.", webhooks, ("status",))
    jobs = {(status,): now[f"jobs_{status}"] for status in _JOBS}
    yield Gauge("jobs", "Jobs that are open, or dead.", jobs, ("status",))


# The state of a lane is the first that applies.
STATES: Final = ("suspended", "held", "paused", "refusing", "recovering", "slow", "ready")
# Most webhooks named in metrics: each is a time series.
WORST = 20
_OF_LANES: Final = {
    "lanes": "Lanes of enabled webhooks; those without work are ready.",
    # Since the oldest with open deliveries is held, failing, refusing, recovering or due.
    "lane_lag_seconds": "How long the longest waiting lane has waited.",
    "lane_concurrency": "Concurrent POSTs allowed on lanes with work, in all.",
    "lane_open_deliveries": "Open deliveries that have a number.",
}
# The lanes that are to be looked at, stopped or in trouble, or whose tenant is suspended, by
# indexes that have few others: what rests is counted as ready, and never read.
_STIRRING = f"""
WITH present AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), stirring AS (
    SELECT * FROM (SELECT tenant_id, webhook_id FROM lanes
                    WHERE look_at >= (SELECT lanes_through FROM sweeps)
                    ORDER BY look_at OFFSET 0) AS to_look_at
    UNION SELECT tenant_id, webhook_id FROM lanes
           WHERE held_since IS NOT NULL OR paused_until IS NOT NULL
    UNION SELECT tenant_id, webhook_id FROM lanes WHERE unsuccessful_since IS NOT NULL
    UNION SELECT k.tenant_id, k.id FROM tenants AS t JOIN webhook_lanes AS k ON k.tenant_id = t.id
           WHERE t.suspended_at IS NOT NULL
), lane AS MATERIALIZED (
    SELECT l.tenant_id, w.id AS of_webhook, t.suspended_at, l.held_since, l.paused_until,
           l.failing_since, l.unsuccessful_since, l.recovering_since, l.slow_at,
           l.due_at, {REFUSES} AS refuses, l.unsuccessful_attempts, l.consecutive_failures,
           l.events_open + l.replays_open + l.tests_open AS open,
           least(l.concurrency, w.max_in_flight) AS concurrency
      FROM stirring AS s
      JOIN webhook_lanes AS k ON k.tenant_id = s.tenant_id AND k.id = s.webhook_id
      JOIN webhooks AS w ON w.tenant_id = k.tenant_id AND w.id = k.webhook_id
      JOIN tenants AS t ON t.id = s.tenant_id
     CROSS JOIN LATERAL (SELECT * FROM lanes AS n
                          WHERE n.tenant_id = s.tenant_id AND n.webhook_id = s.webhook_id
                          ORDER BY n.version DESC LIMIT 1) AS l
     WHERE w.status = 'enabled' AND w.deleted_at IS NULL
)
"""
_READ_LANES = f"""
{_STIRRING}, placed AS (
    SELECT lane.*,
           CASE WHEN suspended_at IS NOT NULL THEN 'suspended'
                WHEN held_since IS NOT NULL THEN 'held'
                WHEN paused_until > present.now THEN 'paused'
                WHEN refuses THEN 'refusing'
                WHEN recovering_since IS NOT NULL THEN 'recovering'
                WHEN slow_at IS NOT NULL THEN 'slow'
                ELSE 'ready' END AS state,
           CASE WHEN suspended_at IS NOT NULL THEN suspended_at
                WHEN held_since IS NOT NULL THEN held_since
                WHEN paused_until > present.now THEN failing_since
                WHEN refuses THEN unsuccessful_since
                WHEN recovering_since IS NOT NULL THEN recovering_since
                ELSE due_at END AS since
      FROM lane CROSS JOIN present
)
SELECT state, count(*) AS lanes, sum(concurrency) AS lane_concurrency,
       sum(open)::bigint AS lane_open_deliveries,
       greatest(coalesce(extract(epoch FROM (SELECT now FROM present)
                                            - min(since) FILTER (WHERE open > 0)), 0), 0)::float8
           AS lane_lag_seconds
  FROM placed GROUP BY state
"""
_ENABLED = "SELECT coalesce(sum(lanes), 0) FROM webhook_counts WHERE status = 'enabled'"
_READ_WORST = f"""
{_STIRRING}
SELECT tenant_id, of_webhook, max(counted.failures) AS failures
  FROM lane CROSS JOIN LATERAL (
    SELECT CASE WHEN refuses THEN unsuccessful_attempts
                ELSE consecutive_failures END AS failures) AS counted
 WHERE counted.failures > 0
 GROUP BY tenant_id, of_webhook
 ORDER BY failures DESC, min(unsuccessful_since), of_webhook LIMIT %s
"""


def _lanes(session: Session, _: Settings) -> Iterator[Gauge]:
    """Yield for each state how many lanes are in it, their lag, concurrency and open deliveries."""
    found = {row["state"]: row for row in cursor(session, dict_row).execute(_READ_LANES.encode())}
    enabled = cursor(session, scalar_row).execute(_ENABLED).fetchone() or 0
    ready = float(enabled) - sum(row["lanes"] for row in found.values())
    for name, text in _OF_LANES.items():
        values = {(state,): float(found.get(state, {}).get(name, 0)) for state in STATES}
        if name == "lanes":
            # The lanes that rest. One that was added or ended in between makes none below zero.
            values["ready",] += max(ready, 0.0)
        yield Gauge(name, text, values, ("state",))


def _worst_webhooks(session: Session, _: Settings) -> Iterator[Gauge]:
    """Yield how often in a row the receivers failed, or refuse and refused, that did so most."""
    values = {
        (ids.text("ten", tenant), ids.text("whk", webhook)): float(failures)
        for tenant, webhook, failures in cursor(session).execute(_READ_WORST.encode(), (WORST,))
    }
    yield Gauge(
        "webhook_consecutive_failures",
        "Failures in a row of the webhooks with work that have the most, 20 at most.",
        values,
        ("tenant_id", "webhook_id"),
    )


# Each ORDER BY matches a small index only, as in `generations`.
_READ_LOG = """
WITH present AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), log AS MATERIALIZED (
    SELECT generation, trouble FROM log_generations ORDER BY generation DESC LIMIT 1
), head AS (
    SELECT size, published_at FROM checkpoints
     WHERE generation = (SELECT generation FROM log) AND note IS NOT NULL
     ORDER BY size DESC LIMIT 1
)
SELECT (SELECT trouble FROM log) AS trouble,
       coalesce((SELECT size FROM head), 0) AS log_size,
       (SELECT count(*) FROM (SELECT id FROM log_leaves WHERE leaf_index IS NULL
                               ORDER BY id LIMIT %(most)s) AS added)
       + (SELECT count(*) FROM (SELECT leaf_index FROM log_leaves
                                 WHERE generation < (SELECT generation FROM log)
                                   AND leaf_index IS NOT NULL
                                 ORDER BY generation, leaf_index LIMIT %(most)s) AS taken_over)
           AS log_leaves_waiting,
       greatest(coalesce((SELECT extract(epoch FROM (SELECT now FROM present)
                                                    - uuid_made_at(id))::float8
                            FROM log_leaves WHERE leaf_index IS NULL ORDER BY id LIMIT 1), 0), 0)
           AS log_leaf_waiting_seconds,
       (SELECT extract(epoch FROM (SELECT now FROM present) - published_at)::float8 FROM head)
           AS log_head_age_seconds
"""
_OF_LOG: Final = {
    "log_size": "Leaves of the newest published checkpoint.",
    "log_leaves_waiting": "Leaves that no checkpoint has, up to 100,000.",
    "log_leaf_waiting_seconds": "How long the oldest leaf has waited for a checkpoint.",
    # None before the first.
    "log_head_age_seconds": "Age of the newest checkpoint.",
}
# Age of the oldest checkpoint published since the newest one that this witness has seen.
_READ_BEHIND = """
SELECT extract(epoch FROM clock_timestamp() - published_at)::float8 FROM checkpoints
 WHERE generation = (SELECT max(generation) FROM log_generations) AND note IS NOT NULL
   AND size > coalesce((SELECT max(size) FROM {table}
                         WHERE generation = (SELECT max(generation) FROM log_generations)), 0)
 ORDER BY size LIMIT 1
"""
_TABLES = {
    Voucher.TIMESTAMPS: "checkpoint_timestamps",
    Voucher.WITNESSES: "checkpoint_cosignatures",
}


def _log(session: Session, settings: Settings) -> Iterator[Gauge]:
    """Yield whether the log signs, its backlog, and the oldest entry that each voucher lacks."""
    now = _row(session, _READ_LOG, {"most": MOST_COUNTED})
    halts = {*_HALTS, now["trouble"]} - {None}
    values = {(slug,): float(slug == now["trouble"]) for slug in sorted(halts)}
    yield Gauge("log_halted", "1 for the reason why the log signs nothing.", values, ("reason",))
    for name, text in _OF_LOG.items():
        if now[name] is not None:
            yield Gauge(name, text, {(): now[name]})
    ages = {(str(Voucher.LOG),): _seconds_since(session, monitor.unanchored_since(session))}
    for voucher in sorted(anchoring_status.others_asked(settings)):
        query = _READ_BEHIND.format(table=_TABLES[voucher]).encode()
        (age,) = cursor(session).execute(query).fetchone() or (0.0,)
        ages[str(voucher),] = max(age, 0.0)
    text = "Age of the oldest audit entry, or checkpoint, that this voucher does not cover."
    yield Gauge("unanchored_age_seconds", text, ages, ("by",))


def _of_rest(session: Session, settings: Settings) -> Iterator[Gauge]:
    """Yield what digests, master keys and the verification of the chains lack."""
    refused = schedule.counted(schedule.standing(session))
    text = "Digests that the mail server refuses for good, by what of them."
    yield Gauge("digests_refused", text, {(what,): n for what, n in refused.items()}, ("what",))
    missing = len(key_registry.missing(session, settings.master_keys))
    text = "Keys that may have sealed something and are not in MASTER_KEYS."
    yield Gauge("master_keys_missing", text, {(): missing})
    since = daily.unverified_since(session, settings.master_keys)
    text = "How long no run has verified all audit chains."
    yield Gauge("audit_unverified_seconds", text, {(): _seconds_since(session, since)})


def _seconds_since(session: Session, moment: datetime | None) -> float:
    """Return the age of a moment, 0 for none."""
    if moment is None:
        return 0.0
    return max((database_now(session) - moment).total_seconds(), 0.0)


# Each is read in a transaction of its own: a query that takes too long loses only its figures.
OF_DATABASE: Final[tuple[Callable[[Session, Settings], Iterator[Gauge]], ...]] = (
    _totals,
    _lanes,
    _worst_webhooks,
    _log,
    _of_rest,
)

# Of what each process reports: the gauge's name, the attribute, and the help text.
_OF_PROCESSES: Final = (
    ("process_resident_memory_bytes", "memory", "Resident memory of a process."),
    ("pool_size", "pool_size", "Connections to the database that a process may have."),
    ("pool_in_use", "pool_in_use", "Most connections in use at once within the last five seconds."),
    ("scheduler_leader", "leads", "1 for the scheduler that rings, 0 for one that stands by."),
)


def of_processes(reports: Iterable[Process]) -> Iterator[Gauge]:
    """Yield this release, and what each process reported of itself."""
    yield Gauge("release_info", "The release that answers.", {(VERSION,): 1}, ("version",))
    labels = ("process", "host", "pid")
    by_labels = {(each.role, each.host, str(each.pid)): each for each in reports}
    info = {(*names, each.version): 1.0 for names, each in by_labels.items()}
    yield Gauge("process_info", "1 for each process.", info, (*labels, "version"))
    for name, attribute, text in _OF_PROCESSES:
        told = {names: getattr(each, attribute) for names, each in by_labels.items()}
        known = {names: float(value) for names, value in told.items() if value is not None}
        yield Gauge(name, text, known, labels)
