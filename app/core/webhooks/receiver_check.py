"""Receiver check: a job that sends a receiver genuine, forged, old and repeated deliveries.

One request per step, outside any transaction, and its answer is recorded before the next; a killed
worker's request is repeated. The requests are not deliveries: they have no row and no sequence
number, and do not affect the accounting or the lane's health.
"""

import enum
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias
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
from app.core.webhooks import webhook_secrets, webhooks
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


class Check(enum.StrEnum):
    """The checks; each value is the `check` member of the events sent."""

    VALID = "valid"
    TAMPERED = "tampered"
    STALE = "stale"
    REPEATED = "repeated"


@dataclass(frozen=True)
class Reply:
    """The result of one request: the answer's HTTP status, or None and the reason."""

    status: int | None
    error: str | None = None

    @property
    def taken(self) -> bool:
        """Whether the receiver took the event: any 2xx."""
        return self.status is not None and 200 <= self.status < 300


# Whether a check passed (None: unknown), with one or two sentences on the cause and remedy.
Grade: TypeAlias = tuple[bool | None, str]
UNKNOWN: Grade = (None, "Not known yet.")
NEVER_SENT: Grade = (None, "Not sent: no genuine delivery is answered.")

_TAKES_WHAT_IT_SHOULD_NOT = {
    Check.TAMPERED: "It takes a delivery with a wrong signature, so it does not verify signatures: "
    "anyone who knows its address can send it events. Verify webhook-signature over the raw body, "
    "and answer 401 where it is wrong.",
    Check.STALE: "It takes a delivery that was signed an hour ago, so a recorded request can be "
    "sent to it again. Refuse a webhook-timestamp that is over 5 minutes from its clock.",
}
_REFUSED = {
    Check.TAMPERED: "a wrong signature",
    Check.STALE: "a signature from an hour ago",
}

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
                "ok": UNKNOWN[0],
                "detail": UNKNOWN[1],
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
        secrets, target = webhook_secrets.open_lane(self.master_keys, lane)
        signer = Signer([webhook_signing.new_secret()] if check is Check.TAMPERED else secrets)
        headers = request_headers.of(signer, event_id, body, at, own=target.headers)
        return Errand(
            partial(self.send, lane, target.url, body, headers),
            lambda _, answer: _recorded(progress, answer),
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
    valid, *_ = _replies(progress, Check.VALID)
    for each in progress["checks"]:
        name, replies = Check(each["name"]), _replies(progress, each["name"])
        grade = NEVER_SENT if done else UNKNOWN
        if len(replies) == _REQUESTS.count(name):
            grade = _graded(name, replies, takes_genuine=valid.taken)
        each["ok"], each["detail"] = grade
    found = {each["ok"] for each in progress["checks"]}
    progress["passed"] = False if False in found else (None if None in found else True)
    return Step(None if done else str(progress["sent"]), progress)


def _replies(progress: dict[str, Any], check: str) -> list[Reply]:
    return [Reply(each["status"], each["error"]) for each in _of(progress, check)["answers"]]


def _graded(check: Check, replies: Sequence[Reply], *, takes_genuine: bool) -> Grade:
    """Grade the replies to all requests of one check: how well a receiver verifies deliveries.

    A receiver that did not take the valid delivery proves nothing by refusing invalid ones.
    """
    if check is Check.VALID:
        return _genuine(replies[-1])
    if check is Check.REPEATED:
        return _repeated(replies[0], replies[-1], takes_genuine=takes_genuine)
    return _refusal(check, replies[-1], takes_genuine=takes_genuine)


def _of(progress: dict[str, Any], check: str) -> dict[str, Any]:
    return next(each for each in progress["checks"] if each["name"] == check)


def _genuine(reply: Reply) -> Grade:
    if reply.taken:
        return True, f"It takes a genuine delivery ({reply.status})."
    if reply.status is None:
        return False, f"It does not answer: {reply.error}."
    return False, f"It answers {reply.status} to a genuine delivery. {_remedy(reply.status)}"


def _remedy(status: int) -> str:
    if 300 <= status < 400:
        return "Redirects are not followed: give the webhook the address that it leads to."
    if status == 410:
        return "A delivery that is answered 410 disables its webhook."
    if status == 429 or status >= 500:
        return "Such deliveries are retried later; the receiver's own log says why."
    return "Check the request that it got with verify-signature, which names the mistake."


def _refusal(check: Check, reply: Reply, *, takes_genuine: bool) -> Grade:
    status = reply.status
    if reply.taken:
        return False, _TAKES_WHAT_IT_SHOULD_NOT[check]
    if status is None:
        return None, f"It does not answer: {reply.error}. Check again."
    if not takes_genuine:
        return None, f"It answers {status}, which proves nothing: it takes no genuine one."
    if status == 429:
        return None, "It answers 429 (too many requests), which proves nothing. Check again."
    if 400 <= status < 500:
        return True, f"It refuses {_REFUSED[check]} ({status})."
    again = f"Answer 401: a delivery answered {status} is sent again."
    return False, f"It answers {status} to {_REFUSED[check]}. {again}"


def _repeated(first: Reply, second: Reply, *, takes_genuine: bool) -> Grade:
    if first.taken and second.taken:
        only = "Only its owner can see whether it acts once."
        return True, f"It answers {second.status} when the same delivery comes again. {only}"
    if not takes_genuine:
        return None, "It takes no genuine delivery, so this proves nothing."
    for reply in (first, second):
        if reply.status in (None, 429):
            answer = "it answers 429" if reply.status else reply.error
            return None, f"It did not take both: {answer}. Check again."
    if not first.taken:
        return False, f"It answers {first.status} to a genuine delivery after others."
    known = "Answer 2xx to a webhook-id that is known: deliveries come at least once"
    again = f"It takes a delivery, and answers {second.status} when the same comes again."
    return False, f"{again} {known}, and refused ones are sent again."
