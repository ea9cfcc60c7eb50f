"""The checks, a module for each part of the service.

`production`, `versions`, `database`, `redis_server`, `clocks`, `rights`, `connections`, `backlog`,
`keys`, `log_head`, `anchors`, `mail`, `egress`.
"""

from collections.abc import Mapping
from typing import Final

from app.manage.doctor.checks import (
    anchors,
    backlog,
    clocks,
    connections,
    database,
    egress,
    keys,
    log_head,
    mail,
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
    "keys": keys.check,
    "log": log_head.check,
    "timestamps": anchors.check_authority,
    "witnesses": anchors.check_witnesses,
    "mail": mail.check,
    "webhooks": egress.check,
}
