"""What PostgreSQL does to answer a statement, by its own account.

Every scan and join that needs no index is off, so a plan shows whether an index serves the
statement. Which one the planner would take depends on statistics that no test has a hold on.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Select
from sqlalchemy.orm import Session

BY_INDEX = "; ".join(
    f"SET LOCAL enable_{each} = off"
    for each in ("seqscan", "bitmapscan", "hashjoin", "mergejoin", "material")
)


UNSORTED = f"{BY_INDEX}; SET LOCAL enable_sort = off"


def explained(
    connection: Connection,
    query: str,
    values: Mapping[str, Any] | Sequence[Any] | None = None,
    settings: str = BY_INDEX,
) -> list[dict[str, Any]]:
    """Run a query (placeholders as psycopg has them); return the nodes of its plan.

    With `UNSORTED` the index must have the order that is asked for.
    """
    with connection.begin_nested() as one:
        connection.exec_driver_sql(settings)
        given = values if isinstance(values, Mapping) or values is None else tuple(values)
        found = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {query}", given)
        (plan,) = found.scalar_one()
        # The settings go with it.
        one.rollback()
    return [*_nodes(plan["Plan"])]


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for below in node.get("Plans", ()):
        yield from _nodes(below)


def indexes(nodes: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return the names of the indexes that a plan reads, each with its condition."""
    return {
        each["Index Name"]: each.get("Index Cond", "") for each in nodes if "Index Name" in each
    }


def rows_met(nodes: Sequence[dict[str, Any]]) -> float:
    """Return how many rows the nodes of a plan met, passed on or thrown away, in all loops."""
    thrown = ("Filter", "Index Recheck", "Join Filter")
    return float(
        sum(
            (node["Actual Rows"] + sum(node.get(f"Rows Removed by {each}", 0) for each in thrown))
            * node["Actual Loops"]
            for node in nodes
        )
    )


def rows_read(session: Session, statement: Select[Any]) -> float:
    """Run a statement; return how many rows the nodes of its plan met."""
    compiled = statement.compile(dialect=session.get_bind().dialect)
    return rows_met(explained(session.connection(), str(compiled), compiled.params))
