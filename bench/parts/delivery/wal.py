"""What a finding and its delivery write: bytes of WAL and of storage, table by table.

Findings are posted one by one and delivered meanwhile, by the whole service. WAL is read back from
the server (pg_walinspect); a record of several pages counts where its first page lies.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import psycopg

from bench.figures import Figure
from bench.lab import Lab
from bench.processes import until
from bench.scale import Scale

_CONNECTIONS = 16
_DONE_SECONDS = 120.0
# Rows that make the first pages, and all that is written once.
_WARM_UP = 500

# A partition counts as its parent, an index as its table. By the file and not by name, so that
# nothing that was dropped meanwhile fails the query.
_FILES = """
WITH RECURSIVE grown AS (
    SELECT c.oid, c.relfilenode, c.relkind, coalesce(i.indrelid, c.oid) AS heap FROM pg_class AS c
      LEFT JOIN pg_index AS i ON i.indexrelid = c.oid
     WHERE c.relkind IN ('r', 'i', 't') AND c.relnamespace IN ('public'::regnamespace,
                                                              'pg_toast'::regnamespace)
), named AS (
    SELECT grown.*, coalesce(parent.inhparent, owner.oid, grown.heap)::regclass::text AS name
      FROM grown
      LEFT JOIN pg_class AS owner ON owner.reltoastrelid = grown.heap
      LEFT JOIN pg_inherits AS parent ON parent.inhrelid = coalesce(owner.oid, grown.heap)
)
"""
_SIZES = f"""{_FILES}
SELECT name, relkind = 'i', sum(pg_relation_size(oid))::float FROM named GROUP BY 1, 2
"""
_BLOCKS = f"""{_FILES}
SELECT coalesce(name, 'else'), coalesce(relkind = 'i', false), count(*)::float,
       sum(record_length - fpi)::float, sum(fpi)::float
  FROM (SELECT start_lsn, max(record_length) AS record_length,
               min(relfilenode) FILTER (WHERE block_id = 0) AS relfilenode,
               sum(block_fpi_length) AS fpi
          FROM pg_get_wal_block_info(%(from)s, %(to)s, false) GROUP BY start_lsn) AS record
  LEFT JOIN named USING (relfilenode)
 GROUP BY 1, 2
 UNION ALL
SELECT 'commits', false, count(*), sum(record_length), 0
  FROM pg_get_wal_records_info(%(from)s, %(to)s) WHERE block_ref IS NULL
"""

_WORDS = """
SELECT count(*) FROM findings AS f
 WHERE NOT EXISTS (SELECT FROM finding_words AS w
                    WHERE w.tenant_id = f.tenant_id AND w.finding_id = f.id)
"""


@dataclass
class _Written:
    """What one table was given, in bytes; `wal` without images of whole pages."""

    records: float = 0.0
    wal: float = 0.0
    images: float = 0.0
    of_indexes: float = 0.0
    storage: float = 0.0
    index_storage: float = 0.0


def run(lab: Lab, scale: Scale) -> Iterator[Figure]:
    """Post and deliver findings; yield what one took, in all and of each table."""
    tenant = lab.service.new_tenant()
    webhook = tenant.webhook(lab.receiver.url())
    # Connections share what they have to share out: each posts as many as the others.
    count = scale.findings - scale.findings % _CONNECTIONS
    with psycopg.connect(lab.postgres.admin_url, autocommit=True) as owner:
        owner.execute("CREATE EXTENSION IF NOT EXISTS pg_walinspect")
        tenant.post(tenant.findings(connections=_CONNECTIONS, count=_WARM_UP))
        tenant.wait_until_closed(webhook, _DONE_SECONDS)
        until(lambda: owner.execute(_WORDS).fetchone() == (0,), _DONE_SECONDS, "words are indexed")
        owner.execute("CHECKPOINT")
        tables, begin = _sizes(owner), _position(owner)
        accepted = tenant.books(webhook).accepted
        tenant.post(tenant.findings(connections=_CONNECTIONS, count=count))
        tenant.wait_until_closed(webhook, _DONE_SECONDS)
        until(lambda: owner.execute(_WORDS).fetchone() == (0,), _DONE_SECONDS, "words are indexed")
        count = tenant.books(webhook).accepted - accepted
        found = _written(owner, begin, tables)
    tenant.ask("DELETE", webhook)
    yield from _figures(found, count)


def _figures(found: dict[str, _Written], count: int) -> Iterator[Figure]:
    every = found.values()
    images = sum(each.images for each in every) / count
    note = f"{sum(each.records for each in every) / count:.1f} records, and {images:.0f} bytes of"
    yield Figure(
        "WAL of a finding delivered",
        sum(each.wal for each in every) / count,
        " bytes",
        note=f"{note} pages' images",
    )
    kept = [each for name, each in found.items() if name != "open_deliveries"]
    yield Figure("storage of a finding delivered", sum(e.storage for e in kept) / count, " bytes")
    for name, each in sorted(found.items(), key=lambda item: -item[1].wal):
        if each.wal + each.storage >= count:
            yield Figure(
                f"WAL of a finding delivered, {name}",
                each.wal / count,
                " bytes",
                note=f"{each.of_indexes / count:.0f} for indexes, {each.records / count:.2f}"
                f" records; stored {each.storage / count:.0f},"
                f" {each.index_storage / count:.0f} in indexes",
            )


def _position(owner: psycopg.Connection) -> str:
    row = owner.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None
    return str(row[0])


def _sizes(owner: psycopg.Connection) -> dict[tuple[str, bool], float]:
    return {(name, is_index): size for name, is_index, size in owner.execute(_SIZES)}


def _written(
    owner: psycopg.Connection, begin: str, before: dict[tuple[str, bool], float]
) -> dict[str, _Written]:
    """Return what was written since a position of the log, by table."""
    owner.execute("SELECT pg_switch_wal()")
    found: dict[str, _Written] = {}
    for name, is_index, records, wal, images in owner.execute(
        _BLOCKS, {"from": begin, "to": _position(owner)}
    ):
        each = found.setdefault(name, _Written())
        each.records += records
        each.wal += wal
        each.images += images
        each.of_indexes += wal * is_index
    for (name, is_index), size in _sizes(owner).items():
        each = found.setdefault(name, _Written())
        grown = size - before.get((name, is_index), 0.0)
        each.storage += grown
        each.index_storage += grown * is_index
    return found
