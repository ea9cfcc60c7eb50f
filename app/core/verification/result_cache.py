"""The result of a verification job, sealed in its row for one minute.

The seal binds it to tenant, job and question and holds the time, so the database's owner cannot
write a result.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from app.clock import rfc3339
from app.lib import canonical_json
from app.lib.crypto.sealing import CannotOpen, MasterKeys

_MEMBER = "sealed"


@dataclass(frozen=True)
class Answer:
    """A verification's report, and when it was sealed."""

    found: dict[str, Any]
    at: datetime

    def is_young(self, now: datetime, most: timedelta) -> bool:
        """Say whether it is at most so old; one with a future time is not."""
        return self.at <= now < self.at + most


def identity(tenant_id: UUID, job_id: UUID, question: str) -> str:
    """Name the question of one job, in canonical JSON; `NO_TENANT`: one of the service."""
    return f"jobs/{tenant_id}/{job_id}/verification/{question}"


def seal(
    master_keys: MasterKeys, asked: str, found: Mapping[str, Any], now: datetime
) -> dict[str, str]:
    """Return what a job's `progress` holds of an answer; `found` is JSON, `now` the database's.

    `asked` is the `identity` of the question.
    """
    text = canonical_json.dumps({"at": rfc3339(now), "found": dict(found)})
    return {_MEMBER: b64encode(master_keys.seal(text, asked)).decode()}


def unseal(master_keys: MasterKeys, asked: str, progress: str | None) -> Answer | None:
    """Return the answer sealed for this question; None if `progress` holds anything else."""
    try:
        sealed = b64decode(json.loads(progress or "{}")[_MEMBER], validate=True)
        opened = json.loads(master_keys.open(sealed, asked))
    except (ValueError, TypeError, KeyError, RecursionError, CannotOpen):
        return None
    return Answer(opened["found"], datetime.fromisoformat(opened["at"]))
