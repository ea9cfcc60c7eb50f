"""The checks, a module for each part of the service.

`production`, `versions`, `database`, `clocks`, `rights`, `connections`, `redis_server`, `backlog`.
"""

from collections.abc import Mapping
from typing import Final

from app.manage.doctor.checks import (
    backlog,
    clocks,
    connections,
    database,
    production,
    redis_server,
    rights,
    versions,
)
from app.manage.doctor.running import Check

# In the order of the report.
CHECKS: Final[Mapping[str, Check]] = {
    "settings": production.check,
    "versions": versions.check,
    "database": database.check,
    "redis": redis_server.check,
    "clock": clocks.check,
    "roles": rights.check,
    "connections": connections.check,
    "queue": backlog.check,
}
