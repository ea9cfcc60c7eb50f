"""The errors of the product.

Core raises these; `app/api/http/problems.py` alone maps them to HTTP, and the slug names
the page that explains each. A `detail` tells the caller the fault and the remedy. It never contains
a secret or a driver's message.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar


class ServiceError(Exception):
    """The base class of errors that callers see; `members` are added to the problem details."""

    slug: ClassVar[str] = "internal-error"

    def __init_subclass__(cls, slug: str | None = None) -> None:
        cls.slug = slug or cls.slug

    def __init__(self, detail: str, members: Mapping[str, object] = MappingProxyType({})) -> None:
        super().__init__(detail)
        self.detail = detail
        self.members = members


class NotFound(ServiceError, slug="not-found"):
    """The resource does not exist, or the caller may not see it."""


@dataclass(frozen=True)
class FieldError:
    """A refused field: where (RFC 6901 pointer into the body) and why."""

    pointer: str
    detail: str


class Invalid(ServiceError, slug="validation-failed"):
    """Values were refused; `fields` names each."""

    def __init__(
        self, *fields: FieldError, detail: str = "One or more fields were refused."
    ) -> None:
        named = [{"pointer": field.pointer, "detail": field.detail} for field in fields]
        super().__init__(detail, {"errors": named} if named else {})
        self.fields = fields


class Conflict(ServiceError, slug="conflict"):
    """The current state does not allow the request."""


class SessionCompleted(Conflict, slug="session-completed"):
    """A session is completed once."""


class WebhookDisabled(Conflict, slug="webhook-disabled"):
    """A disabled webhook is sent nothing."""


class CannotRevokeOwnKey(Conflict, slug="cannot-revoke-own-key"):
    """A key cannot revoke itself: the mistake could not be undone."""


class NotResumable(Conflict, slug="job-state"):
    """The job is not in a state from which it can be retried, cancelled or resumed."""


class TooManyWebhooks(Conflict, slug="too-many-webhooks"):
    """A tenant has at most 100 webhooks."""


class TooManyShareLinks(Conflict, slug="too-many-share-links"):
    """A record has at most 100 active share links."""


class StorageLimit(Conflict, slug="storage-limit"):
    """A tenant has stored as many records, or bytes of bundles, as the operator admits."""


class AuditChainBroken(Conflict, slug="audit-chain-broken"):
    """The audit chain does not verify; `report` says where and how."""

    def __init__(self, detail: str, report: dict[str, object]) -> None:
        super().__init__(detail, report)
        self.report = report


class KeptHeadContradicted(AuditChainBroken):
    """The chain agrees with itself and the log, but not with the head that a caller kept of it."""


class LogPending(Conflict, slug="log-pending"):
    """The record or entry is not in the published log yet."""


class LogHalted(Conflict):
    """The transparency log signs nothing until its fault is repaired."""


class LogRolledBack(LogHalted, slug="log-rolled-back"):
    """The database is older than the published log, or differs from it."""


class LogDamaged(LogHalted, slug="log-damaged"):
    """The log's data in the database does not match what was published."""


class OlderStampDamaged(LogDamaged):
    """Damage that only a full verification of timestamps and cosignatures finds."""


class LogHeadLost(LogHalted, slug="log-head-lost"):
    """The head outside the database is gone or cannot be read as one."""


class LogHeadUnavailable(LogHalted, slug="log-head-unavailable"):
    """The head store does not answer; the service retries by itself."""


class Gone(ServiceError, slug="history-pruned"):
    """The requested history is older than the retention period."""

    def __init__(self, detail: str, first_available: int | None = None) -> None:
        known = {} if first_available is None else {"first_available": first_available}
        super().__init__(detail, known)


class BundleExpired(ServiceError, slug="bundle-expired"):
    """The bundle's retention period has ended; its commitment remains."""

    def __init__(self, detail: str, sha256: bytes, log_index: int | None) -> None:
        super().__init__(detail, {"sha256": sha256.hex(), "log_index": log_index})


class PackFailed(ServiceError, slug="evidence-pack-failed"):
    """The evidence pack's job is dead; `job_id` (as callers see it) names it."""

    def __init__(self, detail: str, job_id: str) -> None:
        super().__init__(detail, {"job_id": job_id})


class PackUnreadable(ServiceError, slug="evidence-pack-unreadable"):
    """A stored evidence pack does not decrypt; retry after `retry_after` seconds."""

    def __init__(self, detail: str, retry_after: int) -> None:
        super().__init__(detail)
        self.retry_after = retry_after


# One text for a key that is unknown, revoked or expired: the answer must not tell which.
BAD_KEY = "This API key is not known, was revoked or has expired."


class Unauthenticated(ServiceError, slug="unauthenticated"):
    """No key was sent, or it is unknown, revoked or expired."""


class Forbidden(ServiceError, slug="forbidden"):
    """The key is valid but may not do this."""


class InsufficientRole(Forbidden, slug="insufficient-role"):
    """The key's role is below what is needed."""


class PinnedKey(Forbidden, slug="pinned-key"):
    """A pinned key was used for a resource of the whole tenant."""


class WiderThanPin(Forbidden, slug="wider-than-pin"):
    """A pinned key may only mint keys with the same pin."""


class TenantSuspended(Forbidden, slug="tenant-suspended"):
    """The key is valid, but the operator has suspended its tenant."""


class OutlivesParent(Invalid, slug="outlives-parent"):
    """A key that expires mints none that lives longer."""


class EventTooLarge(Invalid):
    """An event's payload is at most 256 KiB."""


class Unavailable(ServiceError, slug="unavailable"):
    """The database is away, restarting or too busy: the same request may succeed soon."""


class Busy(ServiceError, slug="busy"):
    """The service is overloaded; the same request may succeed soon."""


class IdempotencyKeyReused(Invalid, slug="idempotency-key-reused"):
    """The same Idempotency-Key came with another body."""


class IdempotencyKeyInUse(Conflict, slug="idempotency-key-in-use"):
    """The first request with this Idempotency-Key is still running."""
