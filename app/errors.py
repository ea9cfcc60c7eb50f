"""What can go wrong, said in the product's words.

Core raises these; `app/api/http/problems.py` alone maps them to HTTP, and the slug names
the page that explains each. A `detail` is for the caller: what was wrong and what to do, never a
secret, never the words of a driver.
"""

from dataclasses import dataclass


class ServiceError(Exception):
    """The root of every refusal that a caller can meet."""

    slug = "internal-error"

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


class NotFound(ServiceError):
    """There is no such thing, or the caller may not know that there is."""

    slug = "not-found"


@dataclass(frozen=True)
class FieldError:
    """One field that was refused: where (RFC 6901 pointer into the body) and why."""

    pointer: str
    detail: str


class Invalid(ServiceError):
    """A value was understood and refused; `fields` names each."""

    slug = "validation-failed"

    def __init__(
        self, *fields: FieldError, detail: str = "One or more fields were refused."
    ) -> None:
        super().__init__(detail)
        self.fields = fields


class Conflict(ServiceError):
    """The request is fine, but not in the state that things are in."""

    slug = "conflict"


class SessionCompleted(Conflict):
    """A session is completed once."""

    slug = "session-completed"


class WebhookDisabled(Conflict):
    """A disabled webhook is sent nothing."""

    slug = "webhook-disabled"


class CannotRevokeOwnKey(Conflict):
    """A key cannot end itself: nobody would be left to undo the mistake."""

    slug = "cannot-revoke-own-key"


class NotResumable(Conflict):
    """The job is not in a state from which it can be retried, cancelled or resumed."""

    slug = "job-state"


class TooManyWebhooks(Conflict):
    """A tenant has at most 100 webhooks."""

    slug = "too-many-webhooks"


class TooManyShareLinks(Conflict):
    """A record has at most 100 active share links."""

    slug = "too-many-share-links"


class StorageLimit(Conflict):
    """A tenant has stored as many records, or bytes of bundles, as the operator admits."""

    slug = "storage-limit"


class AuditChainBroken(Conflict):
    """The audit chain does not verify; `report` says where and how."""

    slug = "audit-chain-broken"

    def __init__(self, detail: str, report: dict[str, object]) -> None:
        super().__init__(detail)
        self.report = report


class KeptHeadContradicted(AuditChainBroken):
    """The chain agrees with itself and the log, and not with what a caller says they kept of it."""


class LogPending(Conflict):
    """What was asked for has no place in the published log yet."""

    slug = "log-pending"


class LogHalted(Conflict):
    """The transparency log signs nothing until what is wrong has been put right."""


class LogRolledBack(LogHalted):
    """The database is older than the log that was published from it, or another."""

    slug = "log-rolled-back"


class LogDamaged(LogHalted):
    """What the database holds of the log does not fit what was published."""

    slug = "log-damaged"


class OlderStampDamaged(LogDamaged):
    """So it is where only a verification of every timestamp and cosignature looks."""


class LogHeadLost(LogHalted):
    """The head outside the database is gone or cannot be read as one."""

    slug = "log-head-lost"


class LogHeadUnavailable(LogHalted):
    """Where the head is kept does not answer; it is tried again by itself."""

    slug = "log-head-unavailable"


class Gone(ServiceError):
    """What was asked for is older than what is kept."""

    slug = "history-pruned"

    def __init__(self, detail: str, first_available: int) -> None:
        super().__init__(detail)
        self.first_available = first_available


class BundleExpired(ServiceError):
    """The bundle was kept as long as its tenant said; its commitment remains."""

    slug = "bundle-expired"

    def __init__(self, detail: str, sha256: bytes, log_index: int | None) -> None:
        super().__init__(detail)
        self.sha256 = sha256
        self.log_index = log_index


class PackFailed(ServiceError):
    """The evidence pack's job gave up; `job_id` (as callers see it) says which."""

    slug = "evidence-pack-failed"

    def __init__(self, detail: str, job_id: str) -> None:
        super().__init__(detail)
        self.job_id = job_id


class PackUnreadable(ServiceError):
    """What is stored of an evidence pack does not open; come back after `retry_after` seconds."""

    slug = "evidence-pack-unreadable"

    def __init__(self, detail: str, retry_after: int) -> None:
        super().__init__(detail)
        self.retry_after = retry_after


# One text for a key that is unknown, revoked or expired: nobody learns which it was.
BAD_KEY = "This API key is not known, was revoked or has expired."


class Unauthenticated(ServiceError):
    """No key was sent, or it is unknown, revoked or expired."""

    slug = "unauthenticated"


class Forbidden(ServiceError):
    """The key is good and may not do this."""

    slug = "forbidden"


class InsufficientRole(Forbidden):
    """The key's role is below what is needed."""

    slug = "insufficient-role"


class PinnedKey(Forbidden):
    """A pinned key was used for what belongs to the whole tenant."""

    slug = "pinned-key"


class WiderThanPin(Forbidden):
    """A pinned key may only mint keys with the same pin."""

    slug = "wider-than-pin"


class TenantSuspended(Forbidden):
    """The key is good, and its tenant was suspended by the operator."""

    slug = "tenant-suspended"


class OutlivesParent(Invalid):
    """A key that expires mints none that lives longer."""

    slug = "outlives-parent"


class EventTooLarge(Invalid):
    """An event's payload is at most 256 KiB."""


class Unavailable(ServiceError):
    """The database is away, restarting or too busy: the same request may succeed soon."""

    slug = "unavailable"


class Busy(ServiceError):
    """The service has enough to do; the same request may succeed soon."""

    slug = "busy"


class IdempotencyKeyReused(Invalid):
    """The same Idempotency-Key came with another body."""

    slug = "idempotency-key-reused"


class IdempotencyKeyInUse(Conflict):
    """The first request with this Idempotency-Key is still running."""

    slug = "idempotency-key-in-use"
