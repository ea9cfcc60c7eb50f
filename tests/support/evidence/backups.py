"""A backup of the log's tables, and a restore of it."""

from tests.support.evidence.logs import Owner

TABLES = ("log_generations", "log_leaves", "log_tiles", "checkpoints")


def dump(owner: Owner) -> None:
    """Keep the log's tables as a backup would."""
    owner(
        *(f"DROP TABLE IF EXISTS kept_{table}" for table in TABLES),
        *(f"CREATE TABLE kept_{table} AS TABLE {table}" for table in TABLES),
    )


def restore(owner: Owner) -> None:
    """Put the log's tables back to where the backup had them."""
    owner(
        *(f"DELETE FROM {table}" for table in ("log_leaves", *TABLES[2:], "log_generations")),
        "INSERT INTO log_generations SELECT * FROM kept_log_generations",
        "INSERT INTO log_leaves (id, leaf_hash, data, generation, leaf_index)"
        " SELECT id, leaf_hash, data, generation, leaf_index FROM kept_log_leaves",
        *(f"INSERT INTO {table} SELECT * FROM kept_{table}" for table in TABLES[2:]),
    )
