"""Deliveries of all webhooks over HTTP."""

from typing import Any

from flask import Response

from app.api.http.access.auth import caller, requires
from app.api.http.feeds import filters
from app.api.http.paging import page
from app.api.http.requests.parsing import Blueprint
from app.api.http.responses.json_responses import answer
from app.api.http.transactions import transaction
from app.api.resources.deliveries.list_schemas import (
    FailureGroupsSchema,
    GroupArgs,
    TenantHistoryArgs,
    TenantHistoryPageSchema,
)
from app.core.callers import Role
from app.core.delivery.history import delivery_history, delivery_list, failure_groups
from app.core.delivery.history.delivery_filters import Filters, Status

blp = Blueprint(
    "tenant_deliveries",
    __name__,
    url_prefix="/v1/deliveries",
    description="Deliveries to all webhooks, and groups of failures.",
)


@blp.route("", methods=["GET"], endpoint="list")
@requires(Role.READ, whole_tenant=True)
@blp.arguments(TenantHistoryArgs, location="query")
@blp.response(200, TenantHistoryPageSchema)
def list_deliveries(args: dict[str, Any]) -> Response:
    """List the deliveries of all webhooks, newest first

    All given filters must match. `status` takes several values. While over 10,000 are open, a page
    by an open status may hold fewer than `limit`, or none, although more follow: continue while
    there is a `next_cursor`.
    """
    wanted = tenant_filters(args)
    with transaction(snapshot=True) as session:
        return page(
            args,
            lambda before, limit: delivery_list.page(
                session, caller().tenant_id, wanted, before=before, limit=limit
            ),
            delivery_history.represent,
        )


@blp.route("/groups", methods=["GET"])
@requires(Role.READ, whole_tenant=True)
@blp.arguments(GroupArgs, location="query")
@blp.response(200, FailureGroupsSchema)
def groups(args: dict[str, Any]) -> Response:
    """Group failed deliveries by webhook and cause

    Covers the newest 10,000 deliveries that failed or wait for a retry. A replayed delivery counts
    by its replay, so a delivered event is in no group. `group` filters the list of deliveries, and
    selects deliveries to replay.
    """
    wanted = tenant_filters(args)
    with transaction(snapshot=True) as session:
        return answer(
            failure_groups.represent(failure_groups.find(session, caller().tenant_id, wanted))
        )


def tenant_filters(args: dict[str, Any]) -> Filters:
    """Return the filters that a query names."""
    statuses = frozenset(map(Status, args.get("status", ())))
    return Filters(**{**filters(args), "status": statuses})
