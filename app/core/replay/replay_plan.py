"""The plan of a bulk replay (its job's arguments) and its position (its job's cursor)."""

import json
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from app import ids
from app.clock import rfc3339
from app.core.delivery.history.delivery_history import earliest_id
from app.core.jobs import job_rows
from app.core.replay.replay_selection import Selection, Wanted
from app.models import Job

UNSENT = "unsent"
_NOWHERE = UUID(int=0)


@dataclass(frozen=True)
class Pace:
    """The pace: `rate` a second; the first `canary` alone; stop after `stop_after_failures`."""

    rate: int | None = None
    canary: int | None = None
    stop_after_failures: int | None = None


@dataclass(frozen=True)
class Plan:
    """A replay's plan: the selection, the lanes of its webhooks and its pace."""

    selection: Selection
    webhooks: tuple[UUID, ...]
    pace: Pace

    @classmethod
    def of(cls, job: Job) -> "Plan":
        """Parse a job's arguments."""
        args = job_rows.args_of(job)
        one = args["webhook_id"] and ids.read("whk", args["webhook_id"])
        selection = Selection(one, Wanted.from_args(args), datetime.fromisoformat(args["as_of"]))
        webhooks = tuple(
            ids.lane_of(ids.read("whk", each), number)
            for each, number in zip(args["webhooks"], args["lanes"], strict=True)
        )
        pace = Pace(args["rate"], args["canary"], args["stop_after_failures"])
        return cls(selection, webhooks, pace)

    def to_args(self) -> dict[str, Any]:
        """Return this as a job's arguments."""
        one = self.selection.webhook_id
        return {
            "webhook_id": one and ids.text("whk", one),
            "webhooks": [ids.text("whk", each) for each in self.webhooks],
            "lanes": [ids.lane_number(each) for each in self.webhooks],
            **self.selection.wanted.to_args(),
            **vars(self.pace),
            "as_of": rfc3339(self.selection.as_of),
        }


@dataclass(frozen=True)
class Scan:
    """Rows still to be read for one webhook: those of `table` with ids above `after`."""

    webhook: UUID
    table: str
    after: UUID = _NOWHERE


@dataclass(frozen=True)
class Position:
    """A job's position: the scans left, in turns, and how much of the canary is unsent.

    `canary` is None once it has succeeded; `steps` counts sending steps. `forgiven` is how many
    replays had failed when the job was last resumed.
    """

    left: tuple[Scan, ...]
    canary: int | None = None
    steps: int = 0
    forgiven: int = 0

    @classmethod
    def of(cls, job: Job, plan: Plan) -> "Position":
        """Parse a job's cursor."""
        if job.cursor is None:
            tables = plan.selection.wanted.tables()
            left = tuple(Scan(each, table) for table in tables for each in plan.webhooks)
            return cls(left, plan.pace.canary)
        kept = json.loads(job.cursor)
        left = tuple(
            Scan(UUID(hex=webhook), table, UUID(hex=after))
            for webhook, table, after in kept["left"]
        )
        return cls(left, kept["canary"], kept["steps"], kept["forgiven"])

    def text(self) -> str:
        """Return this as a job's cursor."""
        left = [[each.webhook.hex, each.table, each.after.hex] for each in self.left]
        return json.dumps({**vars(self), "left": left})

    def after(self, scan: Scan, last: UUID | None, made: int) -> "Position":
        """Return the position after one more step; `last` is None at the end of a scan.

        Webhooks take turns.
        """
        others = tuple(each for each in self.left if each != scan)
        left = others if last is None else (*others, replace(scan, after=last))
        canary = None if self.canary is None else max(0, self.canary - made)
        return Position(left, canary, self.steps + 1, self.forgiven)

    def begun_again(self, webhooks: tuple[UUID, ...], failing: int) -> "Position":
        """Return the position from which a stopped job resumes, first with the withdrawn replays.

        The `failing` replays so far do not stop it again.
        """
        left = tuple(each for each in self.left if each.table != UNSENT)
        unsent = tuple(Scan(each, UNSENT) for each in webhooks)
        return Position((*unsent, *left), steps=self.steps, forgiven=failing)


def oldest_of(job: Job) -> UUID:
    """Return a lower bound of the ids of a job's deliveries."""
    return earliest_id(job.created_at)
