"""The query parameters that feeds share, and the filters among those of any list."""

from collections.abc import Mapping
from typing import Any

from app import fields
from app.api.http.paging import PageArgs


class FeedArgs(PageArgs):
    """Filters of a feed; all given must match."""

    agent_id = fields.Id("agt")
    principal = fields.Text(200)
    since = fields.Time(description="Created at this moment or later.")
    until = fields.Time(description="Created before this moment.")


def filters(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the filters among a list's query parameters: all but `limit` and `cursor`."""
    return {name: value for name, value in args.items() if name not in ("limit", "cursor")}
