"""The errors of the product, and all problem types (RFC 9457): one class each.

A class that names a `slug` is a problem type: its docstring is the title and the advice of the page
that explains it. `app/api/http/problems.py` alone answers them. A `detail` never contains a secret
or a driver's message.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class ProblemType:
    """A problem type: its status, its title, the advice on its page, and headers of its answers."""

    status: int
    title: str
    advice: str
    headers: Mapping[str, str]


PROBLEM_TYPES: dict[str, ProblemType] = {}
"""All problem types by slug; the first of a status stands for what has no other type."""


class ServiceError(Exception):
    """The base class of errors that callers see.

    `members` are added to the problem details, `headers` to the answer.
    """

    slug: ClassVar[str]

    def __init_subclass__(
        cls,
        slug: str | None = None,
        status: int | None = None,
        headers: Mapping[str, str] = _NOTHING,
    ) -> None:
        if slug is not None:
            status = status or PROBLEM_TYPES[cls.slug].status
            cls.slug = slug
            title, _, advice = inspect.cleandoc(cls.__doc__ or "").partition("\n\n")
            PROBLEM_TYPES[slug] = ProblemType(
                status, title.removesuffix("."), " ".join(advice.split()), headers
            )

    def __init__(
        self,
        detail: str,
        members: Mapping[str, Any] = _NOTHING,
        headers: Mapping[str, str] = _NOTHING,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.members = members
        self.headers = {**PROBLEM_TYPES[self.slug].headers, **headers}


@dataclass(frozen=True)
class FieldError:
    """A refused field: where (RFC 6901 pointer into the body) and why.

    `line` and `column`, both from 1, are the place in the text of an expression.
    """

    pointer: str
    detail: str
    line: int | None = None
    column: int | None = None

    def members(self) -> dict[str, str | int]:
        """Return its members in an answer."""
        return {name: value for name, value in vars(self).items() if value is not None}


# One text for a key that is unknown, revoked or expired: the answer must not tell which.
BAD_KEY = "This API key is not known, was revoked or has expired."


class BadRequest(ServiceError, slug="bad-request", status=400):
    """The request cannot be read.

    Look at the detail; the request is not valid HTTP.
    """


class MalformedBody(ServiceError, slug="malformed-body", status=400):
    """The body is not JSON.

    Send one JSON text (RFC 8259) in UTF-8, without a byte-order mark. NaN and Infinity are not
    JSON.
    """


class Unauthenticated(
    ServiceError, slug="unauthenticated", status=401, headers={"WWW-Authenticate": "Bearer"}
):
    """No valid API key.

    Send Authorization: Bearer with a key, or x-api-key. Revoked, expired and unknown keys get the
    same answer; ask an administrator of your tenant for a new one.
    """


class Forbidden(ServiceError, slug="forbidden", status=403):
    """Not allowed.

    The key is valid, but may not do this.
    """


class InsufficientRole(Forbidden, slug="insufficient-role"):
    """The key's role is too low.

    Keys have one role: read, write or admin, each including the ones before it. The detail names
    the role needed. A key mints no role above its own.
    """


class PinnedKey(Forbidden, slug="pinned-key"):
    """A pinned key cannot do this.

    The key is pinned to one agent and principal, and this request concerns the whole tenant. Use a
    key without a pin.
    """


class WiderThanPin(Forbidden, slug="wider-than-pin"):
    """The pin would be wider.

    A pinned key mints only keys with exactly its own pin.
    """


class TenantSuspended(Forbidden, slug="tenant-suspended"):
    """The tenant is suspended.

    The operator of this service has suspended the tenant of this key. Nothing is lost: once the
    tenant is resumed, its keys work again and its pending deliveries are sent.
    """


class NotFound(ServiceError, slug="not-found", status=404):
    """Not found.

    It does not exist, or this key may not see it: the answer is the same for both.
    """


class MethodNotAllowed(ServiceError, slug="method-not-allowed", status=405):
    """The method does not exist here.

    The Allow header names the methods that do.
    """


class RequestTimeout(ServiceError, slug="request-timeout", status=408):
    """The body came too slowly.

    A body has BODY_SECONDS (20) to arrive, and a second more for each BODY_RATE bytes (16,384).
    Send it again over a faster connection. The connection was closed.
    """


class Conflict(ServiceError, slug="conflict", status=409):
    """Not in this state.

    Read the resource again, then decide.
    """


class SessionCompleted(Conflict, slug="session-completed"):
    """The session is completed.

    A session is completed once; no record comes after that, only findings. Open a new one.
    """


class SessionOpen(Conflict, slug="session-open"):
    """The session is open.

    A session's statement says what it held when it ended. Complete it with POST
    /v1/sessions/:id/complete first.
    """


class StatementPending(Conflict, slug="statement-pending", headers={"Retry-After": "1"}):
    """The session is not sealed yet.

    It is completed, takes no more records, and its statement is signed within seconds. Repeat the
    request after the seconds that Retry-After names. If the problem persists, /readyz says whether
    workers run.
    """


class ExternalIdInUse(Conflict, slug="external-id-in-use"):
    """The external id is in use.

    Another agent or session of the tenant has this external_id, or the session that has it is of
    another agent or principal. Get that one with PUT …/by-external-id/:external_id, or send another
    external_id.
    """


class WebhookDisabled(Conflict, slug="webhook-disabled"):
    """The webhook is disabled.

    Enable it with PATCH {'status': 'enabled'} first.
    """


class TooManyWebhooks(Conflict, slug="too-many-webhooks"):
    """Too many webhooks.

    A tenant has at most `MAX_WEBHOOKS`, by default 100. Delete one that is no longer used.
    """


class TooManyRules(Conflict, slug="too-many-rules"):
    """Too many rules.

    A tenant has at most 100. Delete one that is no longer used.
    """


class RuleNameInUse(Conflict, slug="rule-name-in-use"):
    """Another rule has this name.

    Findings are found by the name of their rule, so no two rules of a tenant share one. Send
    another name, or change the rule that has it.
    """


class TooManyShareLinks(Conflict, slug="too-many-share-links"):
    """Too many share links.

    A record has at most 100 active share links. Revoke one that is no longer needed.
    """


class TooManyExports(Conflict, slug="too-many-exports"):
    """Too many exports.

    A tenant keeps at most 100 period exports, and has at most 25 made at a time. Delete one that is
    no longer needed, or wait until one is ready.
    """


class StorageLimit(Conflict, slug="storage-limit"):
    """The storage limit of the tenant is reached.

    The operator of this service limits how many records a tenant has, and how many bytes of bundles
    it keeps; the detail says which. Nothing of the request was kept. A shorter
    bundle_retention_days makes room for bundles once older ones have expired; the operator can
    raise either limit.
    """


class CannotRevokeOwnKey(Conflict, slug="cannot-revoke-own-key"):
    """A key cannot revoke itself.

    Revoke it with another admin key of the tenant.
    """


class NotResumable(Conflict, slug="job-state"):
    """The job is not in that state.

    Read the job: its status says what can be done with it.
    """


class AuditChainBroken(Conflict, slug="audit-chain-broken"):
    """The audit chain is broken.

    An entry of the audit chain is not what was written. The answer names the first such entry, what
    was expected and what was found. Keep the database as it is and investigate.
    """

    def __init__(self, detail: str, report: dict[str, object]) -> None:
        super().__init__(detail, report)
        self.report = report


class KeptHeadContradicted(AuditChainBroken):
    """The chain agrees with itself and the log, but not with the head that a caller kept of it."""


class LogPending(Conflict, slug="log-pending", headers={"Retry-After": "1"}):
    """Not in the log yet.

    The transparency log integrates new leaves every second. Where the service waits for its
    witnesses, it publishes a checkpoint once they have cosigned it. Repeat the request after the
    seconds that Retry-After names. If the problem persists, /readyz names its cause.
    """


class LogHalted(Conflict):
    """The transparency log signs nothing until its fault is repaired."""


class LogGoesOn(Conflict):
    """The log needs no successor."""


class LogRolledBack(LogHalted, slug="log-rolled-back"):
    """The database is older than its log.

    The published log is larger than the database's, or differs from it: the database was restored
    from a backup. Nothing is signed in this state. The operator restores the newest database or, if
    it is lost, begins a successor with `python -m app.manage log succeed`.
    """


class HeadOfAnother(LogRolledBack):
    """The head is that of another service's log, so it tells nothing of this database."""


class LogHeadLost(LogHalted, slug="log-head-lost"):
    """The log's head is gone.

    LOG_HEAD_URL holds no head although one was stored there, or no valid checkpoint. The operator
    restores it, or stores the database's own with `python -m app.manage log adopt`.
    """


class LogHeadUnavailable(LogHalted, slug="log-head-unavailable"):
    """The log's head cannot be reached.

    The store at LOG_HEAD_URL does not answer. Nothing is published until it does.
    """


class LogDamaged(LogHalted, slug="log-damaged", headers={"Cache-Control": "no-store"}):
    """The log is damaged.

    The log's data in the database does not match the published log. Damaged data is never served.
    The operator checks it with `python -m app.manage log rebuild --check` and repairs it with
    `python -m app.manage log rebuild`.
    """


class OlderStampDamaged(LogDamaged):
    """Damage that only a full verification of timestamps and cosignatures finds."""


class IdempotencyKeyInUse(Conflict, slug="idempotency-key-in-use"):
    """The first request is still running.

    A request with the same Idempotency-Key has not been answered yet. Repeat this one later: it
    will get the first one's answer.
    """


class Gone(ServiceError, slug="history-pruned", status=410):
    """Older than the retention period.

    History is kept for a limited time. first_available is the first sequence number kept.
    """

    def __init__(self, detail: str, first_available: int | None = None) -> None:
        known = {} if first_available is None else {"first_available": first_available}
        super().__init__(detail, known)


class HistoryRolledBack(ServiceError, slug="history-rolled-back", status=410):
    """What you read is no longer what is stored.

    The database lost the end of its history, by a failover or a restored backup. Sequence numbers
    that you have were given to other events since then. epoch names the history of now; next_after
    is the place up to which yours is the same: go on from there with this epoch, and deduplicate by
    webhook-id. What you received and the service lost is yours alone now.
    """


class BundleExpired(ServiceError, slug="bundle-expired", status=410):
    """The bundle has expired.

    The tenant's retention period for this bundle has ended. Its existence remains provable: sha256
    and log_index identify it. Its metadata, findings and log entry are still there.
    """

    def __init__(self, detail: str, sha256: bytes, log_index: int | None) -> None:
        super().__init__(detail, {"sha256": sha256.hex(), "log_index": log_index})


class ExportGone(ServiceError, slug="export-gone", status=410):
    """The export's file is gone.

    It was deleted, or its days had passed. What was signed of it remains in its statement. Order
    another export of the same period.
    """


class PreconditionFailed(ServiceError, slug="precondition-failed", status=412):
    """Not the version that was asked for.

    If-Match names another ETag than the current one; a bundle never changes.
    """


class BodyTooLarge(ServiceError, slug="body-too-large", status=413):
    """The body is too large.

    A body is at most 1 MiB, that of records or spans 8 MiB.
    """


class UriTooLong(ServiceError, slug="uri-too-long", status=414):
    """The URL is too long.

    A URL is at most 8 KiB.
    """


class UnsupportedMediaType(ServiceError, slug="unsupported-media-type", status=415):
    """The body is not declared as JSON, or is compressed in a way that this route does not take.

    Send Content-Type: application/json, and a Content-Encoding that Accept-Encoding in the answer
    names: the routes that take many things at once take gzip, all others none.
    """


class RangeNotSatisfiable(ServiceError, slug="range-not-satisfiable", status=416):
    """The range lies outside.

    Content-Range says how many bytes there are; ask for a range that begins among them.
    """


class Invalid(ServiceError, slug="validation-failed", status=422):
    """Some fields were refused.

    errors lists each: pointer (RFC 6901) is the place in the body, or the name of a query parameter
    or header, and detail says what to send. Types are strict: "30" is no number. Unknown fields are
    refused.
    """

    def __init__(
        self, *fields: FieldError, detail: str = "One or more fields were refused."
    ) -> None:
        named = [field.members() for field in fields]
        super().__init__(detail, {"errors": named} if named else {})
        self.fields = fields


class EventTooLarge(Invalid):
    """An event's payload is at most 256 KiB."""


class OutlivesParent(Invalid, slug="outlives-parent"):
    """The key would outlive the one that mints it.

    A key that expires mints only keys that expire no later. Send an earlier expires_at, or omit it
    to get the minting key's own.
    """


class IdempotencyKeyReused(Invalid, slug="idempotency-key-reused"):
    """The Idempotency-Key was used before.

    An Idempotency-Key belongs to one body for 24 hours. Use a new key for a new request.
    """


class RateLimited(ServiceError, slug="rate-limited", status=429):
    """Too many requests.

    Retry after the seconds that Retry-After names.
    """


class StagingFull(RateLimited, slug="staging-full", headers={"Retry-After": "10"}):
    """Too many spans wait to be assembled.

    The bytes of a tenant's staged spans are bounded (TENANT_STAGED_MIB). Exporters send again after
    the seconds that Retry-After names. If the problem persists, no worker assembles them.
    """


class HeadersTooLarge(ServiceError, slug="headers-too-large", status=431):
    """The headers are too large.

    Headers are at most 16 KiB in all.
    """


class InternalError(ServiceError, slug="internal-error", status=500):
    """Internal error.

    A fault of this service, which was logged. Quote request_id when you report it.
    """


class Unavailable(ServiceError, slug="unavailable", status=503, headers={"Retry-After": "2"}):
    """The database does not answer.

    Repeat the request after the seconds that Retry-After names. If it creates something, send an
    Idempotency-Key: the first request may have been executed.
    """


class Busy(ServiceError, slug="busy", status=503, headers={"Retry-After": "5"}):
    """Too many large requests at once.

    Few large records are read and written at a time, and each tenant and each reader has a share of
    the memory for that. Nothing was changed. Repeat the request after the seconds that Retry-After
    names.
    """


class EvaluatorLost(ServiceError, slug="evaluator-lost", status=503, headers={"Retry-After": "2"}):
    """The process that evaluates rules ended.

    Repeat the request. If the problem persists, look at the memory of the host and at the log.
    """


class PackFailed(
    ServiceError, slug="evidence-pack-failed", status=503, headers={"Retry-After": "60"}
):
    """The evidence pack could not be built.

    job_id is the dead job; GET /v1/jobs/:id says why it failed. A key with the role write retries
    it with POST /v1/jobs/:id/retry. An hour after its end, the next request for the pack starts a
    new job. The record's bundle and log-proof can be read meanwhile.
    """

    def __init__(self, detail: str, job_id: str) -> None:
        super().__init__(detail, {"job_id": job_id})


class PackUnreadable(ServiceError, slug="evidence-pack-unreadable", status=503):
    """The stored evidence pack does not open.

    Repeat the request after the seconds that Retry-After names. A damaged pack has been deleted,
    and a new one is built. A pack sealed under a master key that the service lacks is kept until
    its operator restores that key.
    """

    def __init__(self, detail: str, retry_after: int) -> None:
        super().__init__(detail, headers={"Retry-After": str(retry_after)})
