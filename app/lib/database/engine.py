"""The engine of a process: its pool, and connections that notice a dead server."""

from sqlalchemy import Engine, create_engine

from app.lib.database import closed_connections
from app.lib.database.pool import PatientPool

# By default TCP says after two hours that a host is gone; these say so within half a minute.
_NOTICE_A_DEAD_SERVER = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}


def pooled_engine(
    url: str, pool_size: int, application: str, prepare_threshold: int | None
) -> Engine:
    """Return an engine in autocommit mode, with a `PatientPool`; nothing is connected yet.

    `application` is the name that PostgreSQL shows; `prepare_threshold` is psycopg's.
    """
    engine = create_engine(
        url,
        hide_parameters=True,
        isolation_level="AUTOCOMMIT",
        poolclass=PatientPool,
        pool_size=pool_size,
        pool_recycle=1800,
        connect_args={
            "prepare_threshold": prepare_threshold,
            "connect_timeout": 5,
            "application_name": application,
            **_NOTICE_A_DEAD_SERVER,
        },
    )
    closed_connections.replace_at_checkout(engine)
    return engine
