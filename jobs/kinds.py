"""What a step of each kind of durable job does, by the job's kind."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy.orm import Session

from app.core.delivery import bulk_replay
from app.core.digest import claims
from app.core.digest.links import Links
from app.core.digest.sending import Sender
from app.core.jobs import Errand, Step
from app.core.record import expiry
from app.models import Job
from jobs.runtime import Runtime
from jobs.shutdown import shutting_down

Work: TypeAlias = Callable[[Session, UUID, Job], Step | Errand[Any]]


def _digest(here: Runtime) -> Work:
    settings = here.settings
    return Sender(
        mailer=here.mailer,
        transaction=here.database.transaction,
        master_keys=settings.master_keys,
        links=Links(settings.base_url),
        address=settings.mail_from,
        stopping=shutting_down,
    ).step


# Each is bound to what it needs of the process that runs it.
KINDS: Mapping[str, Callable[[Runtime], Work]] = {
    bulk_replay.KIND: lambda _: bulk_replay.step,
    expiry.KIND: lambda _: expiry.step,
    claims.KIND: _digest,
}
