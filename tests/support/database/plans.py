"""What PostgreSQL did to answer a statement, by its own account."""

from typing import Any

from sqlalchemy import Select
from sqlalchemy.orm import Session


def rows_read(session: Session, statement: Select[Any]) -> int:
    """Run a statement; return how many rows its scans looked at, passed on or thrown away."""
    compiled = statement.compile(dialect=session.get_bind().dialect)
    found = session.connection().exec_driver_sql(
        f"EXPLAIN (ANALYZE, FORMAT JSON) {compiled}", compiled.params
    )
    (plan,) = found.scalar_one()
    return rows_of(plan["Plan"])


def rows_of(node: dict[str, Any]) -> int:
    """Return how many rows the scans of a plan looked at; `node` is of EXPLAIN's JSON."""
    looked_at = node["Actual Rows"] + sum(
        node.get(f"Rows Removed by {check}", 0) for check in ("Filter", "Index Recheck")
    )
    return int(looked_at) + sum(map(rows_of, node.get("Plans", ())))
