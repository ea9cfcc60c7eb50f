"""Deliveries of all webhooks over HTTP."""

from typing import Any

from flask import Response

from app.api.http.access.auth import caller, requires
from app.api.http.paging import page
from app.api.http.requests.parsing import Blueprint
from app.api.http.transactions import transaction
from app.api.resources.delivery_schemas import TenantHistoryArgs, TenantHistoryPageSchema
from app.core.callers import Role
from app.core.delivery.history import delivery_history, tenant_history
from app.core.delivery.history.tenant_history import TenantFilters

blp = Blueprint(
    "tenant_deliveries",
    __name__,
    url_prefix="/v1/deliveries",
    description="What was sent to all webhooks, and what became of it.",
)

_OF_THE_PAGE = ("limit", "cursor")


@blp.route("", methods=["GET"], endpoint="list")
@requires(Role.READ, whole_tenant=True)
@blp.arguments(TenantHistoryArgs, location="query")
@blp.response(200, TenantHistoryPageSchema)
def list_deliveries(args: dict[str, Any]) -> Response:
    """List the deliveries of all webhooks, newest first

    All filters that are given must hold. `status` takes several values.
    """
    filters = tenant_filters(args)
    with transaction(snapshot=True) as session:
        return page(
            args,
            lambda before, limit: tenant_history.page(
                session, caller().tenant_id, filters, before=before, limit=limit
            ),
            delivery_history.represent,
        )


def tenant_filters(args: dict[str, Any]) -> TenantFilters:
    """Return the filters that a query names."""
    named = {name: value for name, value in args.items() if name not in _OF_THE_PAGE}
    return TenantFilters(**{**named, "status": frozenset(args.get("status", ()))})
