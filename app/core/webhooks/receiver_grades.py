"""Grades of a receiver check: how well a receiver verifies deliveries, judged by its answers."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass


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


@dataclass(frozen=True)
class Grade:
    """Whether a check passed (None: unknown), with one or two sentences on the cause and remedy."""

    ok: bool | None
    detail: str


UNKNOWN = Grade(ok=None, detail="Not known yet.")
NEVER_SENT = Grade(ok=None, detail="Not sent: no genuine delivery is answered.")

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


def of(check: Check, replies: Sequence[Reply], *, takes_genuine: bool) -> Grade:
    """Grade the replies to all requests of one check.

    `takes_genuine` says whether the receiver took the valid delivery: if it did not, its refusals
    of invalid ones prove nothing.
    """
    if check is Check.VALID:
        return _genuine(replies[-1])
    if check is Check.REPEATED:
        return _repeated(replies[0], replies[-1], takes_genuine=takes_genuine)
    return _refusal(check, replies[-1], takes_genuine=takes_genuine)


def _genuine(reply: Reply) -> Grade:
    if reply.taken:
        return Grade(ok=True, detail=f"It takes a genuine delivery ({reply.status}).")
    if reply.status is None:
        return Grade(ok=False, detail=f"It does not answer: {reply.error}.")
    return Grade(
        ok=False, detail=f"It answers {reply.status} to a genuine delivery. {_remedy(reply.status)}"
    )


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
        return Grade(ok=False, detail=_TAKES_WHAT_IT_SHOULD_NOT[check])
    if status is None:
        return Grade(ok=None, detail=f"It does not answer: {reply.error}. Check again.")
    if not takes_genuine:
        return Grade(
            ok=None, detail=f"It answers {status}, which proves nothing: it takes no genuine one."
        )
    if status == 429:
        return Grade(
            ok=None, detail="It answers 429 (too many requests), which proves nothing. Check again."
        )
    if 400 <= status < 500:
        return Grade(ok=True, detail=f"It refuses {_REFUSED[check]} ({status}).")
    return Grade(
        ok=False,
        detail=f"It answers {status} to {_REFUSED[check]}. Answer 401: a delivery answered "
        f"{status} is sent again.",
    )


def _repeated(first: Reply, second: Reply, *, takes_genuine: bool) -> Grade:
    if first.taken and second.taken:
        return Grade(
            ok=True,
            detail=f"It answers {second.status} when the same delivery comes again. Only its owner "
            "can see whether it acts once.",
        )
    if not takes_genuine:
        return Grade(ok=None, detail="It takes no genuine delivery, so this proves nothing.")
    for reply in (first, second):
        if reply.status in (None, 429):
            answer = "it answers 429" if reply.status else reply.error
            return Grade(ok=None, detail=f"It did not take both: {answer}. Check again.")
    if not first.taken:
        return Grade(
            ok=False, detail=f"It answers {first.status} to a genuine delivery after others."
        )
    return Grade(
        ok=False,
        detail=f"It takes a delivery, and answers {second.status} when the same comes again. "
        "Answer 2xx to a webhook-id that is known: deliveries come at least once, and refused ones "
        "are sent again.",
    )
