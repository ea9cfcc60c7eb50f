"""Receiver check: a job that sends a receiver genuine, forged, old and repeated deliveries.

One request per step, outside any transaction, and its answer is recorded before the next; a killed
worker's request is repeated. The requests are not deliveries: they have no row and no sequence
number, and do not affect the accounting or the lane's health.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from sqlalchemy.orm import Session

from app import ids
from app.core.callers import Caller
from app.core.delivery import events, request_headers
from app.core.delivery.event_types import EventType
from app.core.delivery.events import NewEvent
from app.core.delivery.lanes import lanes
from app.core.delivery.lanes.lanes import Lane
from app.core.jobs import job_queue, job_rows
from app.core.jobs.steps import Errand, JobFailed, Step
from app.core.webhooks import receiver_grades, webhook_secrets, webhook_targets, webhooks
from app.core.webhooks.receiver_grades import NEVER_SENT, UNKNOWN, Check, Reply
from app.lib.crypto import webhook_signing
from app.lib.crypto.sealing import MasterKeys
from app.lib.crypto.webhook_signing import Signer
from app.lib.outbound.client import Answer
from app.models import Job

KIND = "receiver_check"
MESSAGE = "This is a check of the receiver. Nothing has happened."
# Beyond the tolerance of receivers, five minutes.
_STALE_BY = timedelta(hours=1)
_SUSPENDED_WAIT = timedelta(minutes=1)
_NO_ROOM_WAIT = timedelta(seconds=1)
_REQUESTS = (Check.VALID, Check.TAMPERED, Check.STALE, Check.REPEATED, Check.REPEATED)


def start(session: Session, caller: Caller, webhook_id: UUID | None) -> Job:
    """Enqueue the check of a webhook's receiver, or return its open job.

    Raises `NotFound` and `WebhookDisabled`.
    """
    webhook = webhooks.find(session, caller, webhook_id).webhook
    webhooks.require_enabled(webhook)
    progress: dict[str, Any] = {
        "sent": 0,
        "requests": len(_REQUESTS),
        "passed": None,
        "checks": [
            {
                "name": str(check),
                "event_id": ids.text("evt", ids.new()),
                "ok": UNKNOWN.ok,
                "detail": UNKNOWN.detail,
                "answers": [],
            }
            for check in Check
        ],
    }
    return job_queue.enqueue(
        session,
        caller.tenant_id,
        kind=KIND,
        args={"webhook_id": ids.text("whk", webhook.id)},
        dedupe_key=webhook.id.hex,
        progress=progress,
    )


@dataclass(frozen=True)
class Checker:
    """Sends a check's requests, signed as the webhook's deliveries are.

    `send` takes a lane, its URL, a body and headers; it returns None if the bulkhead has no permit.
    """

    send: Callable[[Lane, str, bytes, dict[str, str]], Answer | None]
    master_keys: MasterKeys

    def step(self, session: Session, tenant_id: UUID, job: Job) -> Step | Errand[Answer | None]:
        """Send the next request. Raises `JobFailed` if the webhook was disabled or deleted."""
        progress = json.loads(job.progress or "{}")
        webhook_id = ids.read("whk", job_rows.args_of(job)["webhook_id"])
        lane = lanes.load(session, tenant_id, webhook_id, locked=False)
        if lane is None or not lane.sends:
            raise JobFailed("The webhook was disabled or deleted; the check went no further.")
        if lane.suspended:
            return Step(str(progress["sent"]), progress, _SUSPENDED_WAIT)
        return Errand(
            self._request(lane, job, progress),
            lambda _, answer: _recorded(progress, answer),
        )

    def _request(
        self, lane: Lane, job: Job, progress: dict[str, Any]
    ) -> Callable[[], Answer | None]:
        check = _REQUESTS[progress["sent"]]
        event_id = ids.read("evt", _of(progress, check)["event_id"])
        data = {
            "webhook_id": ids.text("whk", lane.webhook_id),
            "message": MESSAGE,
            "check": str(check),
        }
        test = NewEvent(EventType.WEBHOOK_TEST.value, data, job.created_at)
        body = events.payload(event_id, test)
        at = lane.now - _STALE_BY if check is Check.STALE else lane.now
        target = webhook_targets.open_sealed(
            self.master_keys, lane.sealed_target, lane.tenant_id, lane.webhook_id
        )
        signer = Signer(self._secrets(lane, check))
        headers = request_headers.of(signer, event_id, body, at, own=target.headers)
        return partial(self.send, lane, target.url, body, headers)

    def _secrets(self, lane: Lane, check: Check) -> Sequence[str]:
        if check is Check.TAMPERED:
            return [webhook_signing.new_secret()]
        return webhook_secrets.open_secrets(
            self.master_keys, lane.sealed_secrets, lane.tenant_id, lane.webhook_id, lane.now
        )


def _recorded(progress: dict[str, Any], answer: Answer | None) -> Step:
    """Add an answer, grade all answers so far, and return the step to the next request, if any."""
    if answer is None:
        return Step(str(progress["sent"]), progress, _NO_ROOM_WAIT)
    check = _REQUESTS[progress["sent"]]
    seen = {"status": answer.status, "error": answer.error, "ms": answer.timings.total}
    _of(progress, check)["answers"].append(seen)
    progress["sent"] += 1
    silent = check is Check.VALID and answer.status is None
    done = silent or progress["sent"] == len(_REQUESTS)
    _grade(progress, done=done)
    return Step(None if done else str(progress["sent"]), progress)


def _grade(progress: dict[str, Any], *, done: bool) -> None:
    takes_genuine = _replies(_of(progress, Check.VALID))[0].taken
    for each in progress["checks"]:
        check, replies = Check(each["name"]), _replies(each)
        grade = NEVER_SENT if done else UNKNOWN
        if len(replies) == _REQUESTS.count(check):
            grade = receiver_grades.of(check, replies, takes_genuine=takes_genuine)
        each["ok"], each["detail"] = grade.ok, grade.detail
    found = {each["ok"] for each in progress["checks"]}
    progress["passed"] = False if False in found else (None if None in found else True)


def _replies(check: dict[str, Any]) -> list[Reply]:
    return [Reply(each["status"], each["error"]) for each in check["answers"]]


def _of(progress: dict[str, Any], check: Check) -> dict[str, Any]:
    return next(each for each in progress["checks"] if each["name"] == check)
