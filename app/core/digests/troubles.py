"""What needs the attention of a tenant's operators: webhooks, rules, the audit chain, history.

Alerts tell of each once, when it has begun; a digest lists webhooks and rules as they stand.
"""

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from psycopg.rows import dict_row
from sqlalchemy.orm import Session

from app import ids
from app.core import epochs
from app.core.delivery.lanes.lane_health import FAILURES_BEFORE_PAUSE, REFUSES
from app.core.log import history
from app.database import cursor, database_now
from app.lib.text_sanitizer import one_line

MOST = 20
_ALL = 1_000_000
_NEWS = timedelta(days=1)
_TITLE, _NAME = 200, 100


class Kind(enum.StrEnum):
    """The kinds of troubles that operators are told of."""

    WEBHOOK_FAILING = "webhook.failing"
    WEBHOOK_REFUSING = "webhook.refusing"
    WEBHOOK_DISABLED = "webhook.disabled"
    RULE_FAILING = "rule.failing"
    AUDIT_CHAIN_BROKEN = "audit.chain_broken"
    HISTORY_ROLLED_BACK = "history.rolled_back"


@dataclass(frozen=True)
class Trouble:
    """A trouble: of what (`subject`, its public id), how that is called, since when, and why.

    A webhook's `name` is its origin: a path may hold a token.
    """

    kind: Kind
    subject: str
    since: datetime
    name: str
    what: str


# In which state of its lane `l` a webhook `w` is in trouble.
TROUBLED = f"""
w.deleted_at IS NULL
   AND ((w.status = 'disabled' AND w.disabled_reason <> 'requested')
        OR (w.status = 'enabled' AND ({REFUSES} OR l.failing_since IS NOT NULL
            AND (l.consecutive_failures >= {FAILURES_BEFORE_PAUSE}
                 OR l.paused_until > clock_timestamp()))))
"""
_WEBHOOKS = f"""
SELECT DISTINCT ON (w.status, w.id)
       w.id, w.url, w.status, w.disabled_reason, l.failing_since, l.refused_status,
       coalesce(l.unsuccessful_since, w.updated_at) AS unsuccessful_since,
       CASE WHEN {REFUSES} THEN l.unsuccessful_since END AS refusing_since
  FROM webhooks AS w JOIN present_lanes AS l ON l.tenant_id = w.tenant_id AND l.of_webhook = w.id
 WHERE w.tenant_id = %s AND {TROUBLED}
 ORDER BY w.status, w.id, l.failing_since LIMIT %s
"""
# Those that erred in the last day, and those that the service has switched off.
ERRED = "r.deleted_at IS NULL AND r.erred_at > clock_timestamp() - interval '1 day'"
_RULES = f"""
SELECT r.id, r.name, r.enabled, r.errors, r.last_error_json,
       CASE WHEN r.enabled THEN v.created_at ELSE r.updated_at END AS since
  FROM rules AS r
  JOIN rule_versions AS v ON v.tenant_id = r.tenant_id AND v.rule_id = r.id
       AND v.version = r.version
 WHERE r.tenant_id = %s AND {ERRED}
 ORDER BY r.enabled, r.id LIMIT %s
"""
_BREAKS = """
SELECT seq, reason, detected_at FROM audit_breaks
 WHERE tenant_id = %s AND subject = '' AND healed_at IS NULL ORDER BY seq, reason LIMIT %s
"""
_REASONS = {
    "gone": "its receiver answered 410 Gone",
    "failing": "it had only failed for days",
    "refusing": "its receiver had accepted nothing for days",
}


def of_tenant(session: Session, tenant_id: UUID) -> list[Trouble]:
    """Return all that stands now, gravest first."""
    found = [*_lost_history(session), *_broken_chains(session, tenant_id)]
    return [*found, *webhooks(session, tenant_id, _ALL), *rules(session, tenant_id, _ALL)]


def webhooks(session: Session, tenant_id: UUID, most: int = MOST) -> Sequence[Trouble]:
    """Return the webhooks that fail, refuse, or were disabled by the service."""
    return [_webhook(row) for row in _rows(session, _WEBHOOKS, tenant_id, most)]


def rules(session: Session, tenant_id: UUID, most: int = MOST) -> Sequence[Trouble]:
    """Return the rules that had errors in the last day, or were switched off for them."""
    return [
        Trouble(
            Kind.RULE_FAILING,
            ids.text("rul", row["id"]),
            row["since"],
            one_line(row["name"], _NAME),
            f"{'' if row['enabled'] else 'is off; '}{row['errors']:,} of its evaluations had an "
            "error, the last one: "
            f"{one_line(json.loads(row['last_error_json'])['detail'], _TITLE)}",
        )
        for row in _rows(session, _RULES, tenant_id, most)
    ]


def without_words(trouble: Trouble) -> Trouble:
    """Return a trouble with ids and our own words alone."""
    what = "has errors or was switched off" if trouble.kind is Kind.RULE_FAILING else trouble.what
    return replace(trouble, name=trouble.subject, what=what)


def _webhook(row: Mapping[str, Any]) -> Trouble:
    parts = urlsplit(row["url"])
    subject = ids.text("whk", row["id"])
    origin = one_line(f"{parts.scheme}://{parts.netloc}", _NAME)
    if row["status"] != "enabled":
        why = f"disabled, because {_REASONS.get(row['disabled_reason'], row['disabled_reason'])}"
        return Trouble(Kind.WEBHOOK_DISABLED, subject, row["unsuccessful_since"], origin, why)
    since = row["refusing_since"] or row["failing_since"]
    told = f"since {since.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    if row["refusing_since"]:
        why = f"has refused everything {told}, last with HTTP {row['refused_status']}"
        return Trouble(Kind.WEBHOOK_REFUSING, subject, since, origin, why)
    return Trouble(Kind.WEBHOOK_FAILING, subject, since, origin, f"failing {told}")


def _broken_chains(session: Session, tenant_id: UUID) -> list[Trouble]:
    return [
        Trouble(
            Kind.AUDIT_CHAIN_BROKEN,
            str(row["seq"]),
            row["detected_at"],
            f"Entry {row['seq']:,} of the audit chain",
            f"is not what was written ({one_line(row['reason'], _NAME)}); keep the database as it"
            " is, and investigate",
        )
        for row in _rows(session, _BREAKS, tenant_id, MOST)
    ]


def _lost_history(session: Session) -> list[Trouble]:
    now = epochs.present(session)
    if now.lost is None or database_now(session) - now.began_at > _NEWS:
        return []
    what = f"was rolled back: {history.said(now)}"
    return [Trouble(Kind.HISTORY_ROLLED_BACK, now.name, now.began_at, "The database", what)]


def _rows(session: Session, query: str, tenant_id: UUID, most: int) -> list[dict[str, Any]]:
    return cursor(session, dict_row).execute(query.encode(), (tenant_id, most)).fetchall()
