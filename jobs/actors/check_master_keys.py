"""Each minute: log an alarm if this worker lacks a master key that is in use."""

import structlog

from app.core.master_keys import key_registry
from jobs.process.runtime import runtime

_log = structlog.get_logger(__name__)


def check_master_keys() -> None:
    """Compare MASTER_KEYS with the keys that are in use."""
    here = runtime()
    with here.database.across_tenants() as session:
        missing = key_registry.missing(session, here.settings.master_keys)
    if missing:
        _log.critical(
            "master_key_missing", missing=missing, detail=key_registry.say_missing(missing)
        )
