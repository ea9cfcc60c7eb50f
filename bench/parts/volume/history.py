"""What operators read, as the past grows: the list of deliveries, groups of failures, traffic.

Each is the service's own code in a transaction, up to the body of the answer.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

from sqlalchemy.orm import Session

from app.core.delivery import hours
from app.core.delivery.history import delivery_history, delivery_list, failure_groups
from app.core.delivery.history.delivery_history import Status
from app.core.delivery.history.delivery_list import Filters
from app.core.delivery.hours import Step
from app.database import Database, database_now
from bench.datasets import past
from bench.datasets.past import Past
from bench.figures import Bound, Figure, Reach, p95, percentile
from bench.lab import Lab
from bench.pace import milliseconds
from bench.scale import Scale

_PAGE = 50
_QUICK = {"list": Reach(at_most=50), "stats": Reach(at_most=20)}

Query = Callable[[Session], Any]


def run(lab: Lab, scale: Scale) -> Iterator[Figure]:
    """Measure each query with few deliveries, then with more."""
    least: dict[str, float] = {}
    for size in scale.pasts:
        with lab.migrated() as (settings, database):
            made = past.make(settings, database, size, scale.webhooks)
            for name, query in _queries(made).items():
                answer = partial(_answer, database, made, query)
                times = [milliseconds(answer) for _ in range(scale.samples)]
                bound = Bound(
                    f"with {scale.pasts[0]}", least.setdefault(name, percentile(times, 95))
                )
                reach = _QUICK.get(name.split(",")[0])
                yield p95(f"{name}, {size} deliveries", times, bound, reach)


def _answer(database: Database, made: Past, query: Query) -> None:
    with database.transaction(made.tenant_id, snapshot=True) as session:
        query(session)


def _queries(made: Past) -> Mapping[str, Query]:
    tenant_id, one = made.tenant_id, made.webhooks[0]

    def listed(before: Any = None, **filters: Any) -> Query:
        def query(session: Session) -> Any:
            wanted = Filters(**filters)
            found = delivery_list.page(session, tenant_id, wanted, before=before, limit=_PAGE)
            return [delivery_history.represent(each) for each in found]

        return query

    def grouped(**filters: Any) -> Query:
        return lambda session: failure_groups.represent(
            failure_groups.find(session, tenant_id, Filters(**filters))
        )

    def counted(days: int, step: Step, webhook: Any = None) -> Query:
        def query(session: Session) -> Any:
            now = database_now(session)
            span = hours.span(now, now - timedelta(days=days), now, step)
            return hours.traffic(session, tenant_id, span, webhook)

        return query

    failed = frozenset({Status.FAILED})
    return {
        "list, newest page": listed(),
        "list, from the middle": listed(made.middle),
        "list, of one webhook": listed(webhook_id=one),
        "list, failed": listed(status=failed),
        "list, failed of one webhook": listed(status=failed, webhook_id=one),
        "list, by status code": listed(status_code=503),
        "groups": grouped(),
        "groups, of one webhook": grouped(webhook_id=one),
        "stats, 24 hours": counted(1, Step.HOUR),
        "stats, 30 days by hour": counted(30, Step.HOUR),
        "stats, 30 days by hour of one webhook": counted(30, Step.HOUR, one),
        "stats, 84 days by day": counted(past.DAYS, Step.DAY),
    }
