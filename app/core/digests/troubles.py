"""What needs the attention of a tenant's operators: webhooks, rules, the audit chain, history.

Alerts tell of each once, when it has begun; a digest lists them as they stand.
"""

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from psycopg.rows import dict_row
from sqlalchemy.orm import Session

from app.core import epochs
from app.core.delivery.lanes.lane_health import FAILURES_BEFORE_PAUSE, REFUSES
from app.core.log import history
from app.database import cursor
from app.lib.text_sanitizer import one_line

_TITLE, _NAME = 200, 100


class Kind(enum.StrEnum):
    """The kinds of troubles that operators are told of."""

    WEBHOOK_FAILING = "webhook.failing"
    WEBHOOK_REFUSING = "webhook.refusing"
    WEBHOOK_DISABLED = "webhook.disabled"
    RULE_FAILING = "rule.failing"
    AUDIT_CHAIN_BROKEN = "audit.chain_broken"
    HISTORY_ROLLED_BACK = "history.rolled_back"


GRAVE = (Kind.HISTORY_ROLLED_BACK, Kind.AUDIT_CHAIN_BROKEN, Kind.WEBHOOK_REFUSING)
_PAGES = {"whk": "webhooks", "rul": "rules"}
_GRAVEST_FIRST = list(reversed(Kind))


@dataclass(frozen=True)
class Trouble:
    """A trouble: of what (`subject`, its public id), how that is called, since when, and `what`.

    A webhook's `name` is its origin: a path may hold a token.
    """

    kind: Kind
    subject: str
    since: datetime
    name: str
    what: str

    @property
    def page(self) -> str:
        """The path of its page, within the console."""
        page = _PAGES.get(self.subject.partition("_")[0])
        return "audit" if page is None else f"{page}/{self.subject}"


# In which state of its lane `l` a webhook `w` is in trouble.
TROUBLED = f"""
w.deleted_at IS NULL
   AND ((w.status = 'disabled' AND w.disabled_reason <> 'requested')
        OR (w.status = 'enabled' AND ({REFUSES} OR l.failing_since IS NOT NULL
            AND (l.consecutive_failures >= {FAILURES_BEFORE_PAUSE}
                 OR l.paused_until > clock_timestamp()))))
"""
# All troubles of all tenants. They are few, and most tenants have none: each part begins at those
# in trouble. A rule's are errors of the last day, and that the service switched it off.
STANDING = f"""
SELECT l.tenant_id, x.kind, 'whk_' || replace(w.id::text, '-', '') AS subject,
       min(x.since) AS since,
       jsonb_build_object('url', w.url, 'reason', w.disabled_reason, 'status', min(refused_status))
           AS facts
  FROM lanes AS l
  JOIN webhook_lanes AS k ON k.tenant_id = l.tenant_id AND k.id = l.webhook_id
  JOIN webhooks AS w ON w.tenant_id = k.tenant_id AND w.id = k.webhook_id
 CROSS JOIN LATERAL (
       SELECT CASE WHEN w.status = 'disabled' THEN '{Kind.WEBHOOK_DISABLED}'
                   WHEN {REFUSES} THEN '{Kind.WEBHOOK_REFUSING}'
                   ELSE '{Kind.WEBHOOK_FAILING}' END AS kind,
              CASE WHEN w.status = 'disabled' OR {REFUSES} THEN l.unsuccessful_since
                   ELSE l.failing_since END AS since) AS x
 WHERE l.unsuccessful_since IS NOT NULL AND {TROUBLED}
   AND NOT EXISTS (SELECT FROM lanes AS newer
                    WHERE newer.tenant_id = l.tenant_id AND newer.webhook_id = l.webhook_id
                      AND newer.version > l.version)
 GROUP BY l.tenant_id, x.kind, w.id, w.url, w.disabled_reason
UNION ALL
SELECT tenant_id, '{Kind.AUDIT_CHAIN_BROKEN}', seq::text, detected_at,
       jsonb_build_object('reason', reason)
  FROM audit_breaks WHERE healed_at IS NULL AND subject = ''
UNION ALL
SELECT r.tenant_id, '{Kind.RULE_FAILING}', 'rul_' || replace(r.id::text, '-', ''),
       CASE WHEN r.enabled THEN v.created_at ELSE r.updated_at END,
       jsonb_build_object('name', r.name, 'enabled', r.enabled, 'errors', r.errors,
                          'last', r.last_error_json)
  FROM rules AS r
  JOIN rule_versions AS v ON v.tenant_id = r.tenant_id AND v.rule_id = r.id
       AND v.version = r.version
 WHERE r.deleted_at IS NULL AND r.erred_at > clock_timestamp() - interval '1 day'
UNION ALL
SELECT t.id, '{Kind.HISTORY_ROLLED_BACK}', 'epo_' || replace(e.id::text, '-', ''), e.began_at,
       '{{}}'
  FROM (SELECT id, began_at, lost FROM epochs ORDER BY number DESC LIMIT 1) AS e
 CROSS JOIN tenants AS t
 WHERE e.lost IS NOT NULL AND e.began_at > clock_timestamp() - interval '1 day'
"""
_OF_TENANT = f"SELECT * FROM ({STANDING}) AS x WHERE tenant_id = %(tenant)s"
_REASONS = {
    "gone": "its receiver answered 410 Gone",
    "failing": "it had only failed for days",
    "refusing": "its receiver had accepted nothing for days",
}


def of_tenant(session: Session, tenant_id: UUID) -> list[Trouble]:
    """Return all that stands now, gravest first."""
    return read(session, _OF_TENANT, {"tenant": tenant_id})


def read(session: Session, query: str, values: Mapping[str, Any]) -> list[Trouble]:
    """Return the troubles that a query over `STANDING` selects, gravest first."""
    rows = cursor(session, dict_row).execute(query.encode(), values).fetchall()
    found = [
        Trouble(kind, row["subject"], row["since"], *_words(session, kind, row))
        for row in rows
        for kind in [Kind(row["kind"])]
    ]
    return sorted(found, key=lambda each: (gravest_first(each), each.subject))


def gravest_first(trouble: Trouble) -> int:
    """Return a trouble's place in a list."""
    return _GRAVEST_FIRST.index(trouble.kind)


def without_words(trouble: Trouble) -> Trouble:
    """Return a trouble with ids and our own words alone."""
    what = "has errors, or was switched off" if trouble.kind is Kind.RULE_FAILING else trouble.what
    return replace(trouble, name=trouble.subject, what=what)


def _words(session: Session, kind: Kind, row: Mapping[str, Any]) -> tuple[str, str]:
    """Return a trouble's name, and what is wrong."""
    facts = row["facts"]
    match kind:
        case Kind.HISTORY_ROLLED_BACK:
            return "The database", f"was rolled back: {history.said(epochs.present(session))}"
        case Kind.AUDIT_CHAIN_BROKEN:
            why = one_line(facts["reason"], _NAME)
            what = f"is not what was written ({why}); keep the database as it is, and investigate"
            return f"Entry {int(row['subject']):,} of the audit chain", what
        case Kind.RULE_FAILING:
            so = "has had" if facts["enabled"] else "is off, after"
            last = one_line(json.loads(facts["last"])["detail"], _TITLE)
            what = f"{so} {facts['errors']:,} evaluations with an error, the last one: {last}"
            return one_line(facts["name"], _NAME), what
        case Kind.WEBHOOK_DISABLED:
            what = f"was disabled, because {_REASONS.get(facts['reason'], facts['reason'])}"
        case Kind.WEBHOOK_REFUSING:
            what = f"refuses everything, last with HTTP {facts['status']}"
        case _:
            what = "fails"
    parts = urlsplit(facts["url"])
    return one_line(f"{parts.scheme}://{parts.netloc}", _NAME), what
