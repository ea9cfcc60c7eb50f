"""The problem types (RFC 9457): each has a status, a title and advice for its page."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """A problem type: its status, its title, and the advice on its page."""

    status: int
    title: str
    advice: str


KINDS: Mapping[str, Kind] = {
    "malformed-body": Kind(
        400,
        "The body is not JSON",
        "Send one JSON text (RFC 8259) in UTF-8, without a byte-order mark. NaN and Infinity are "
        "not JSON.",
    ),
    "bad-request": Kind(
        400, "The request cannot be read", "Look at the detail; the request is not valid HTTP."
    ),
    "unauthenticated": Kind(
        401,
        "No valid API key",
        "Send Authorization: Bearer with a key, or x-api-key. Revoked, expired and unknown keys "
        "get the same answer; ask an administrator of your tenant for a new one.",
    ),
    "forbidden": Kind(403, "Not allowed", "The key is valid, but may not do this."),
    "insufficient-role": Kind(
        403,
        "The key's role is too low",
        "Keys have one role: read, write or admin, each including the ones before it. The detail "
        "names the role needed. A key mints no role above its own.",
    ),
    "pinned-key": Kind(
        403,
        "A pinned key cannot do this",
        "The key is pinned to one agent and principal, and this request concerns the whole tenant. "
        "Use a key without a pin.",
    ),
    "wider-than-pin": Kind(
        403, "The pin would be wider", "A pinned key mints only keys with exactly its own pin."
    ),
    "tenant-suspended": Kind(
        403,
        "The tenant is suspended",
        "The operator of this service has suspended the tenant of this key. Nothing is lost: once "
        "the tenant is resumed, its keys work again and its pending deliveries are sent.",
    ),
    "not-found": Kind(
        404,
        "Not found",
        "It does not exist, or this key may not see it: the answer is the same for both.",
    ),
    "method-not-allowed": Kind(
        405, "The method does not exist here", "The Allow header names the methods that do."
    ),
    "request-timeout": Kind(
        408,
        "The body came too slowly",
        "A body has BODY_SECONDS (20) to arrive, and a second more for each BODY_RATE bytes "
        "(16,384). Send it again over a faster connection. The connection was closed.",
    ),
    "conflict": Kind(409, "Not in this state", "Read the resource again, then decide."),
    "session-completed": Kind(
        409,
        "The session is completed",
        "A session is completed once; no record comes after that, only findings. Open a new one.",
    ),
    "webhook-disabled": Kind(
        409, "The webhook is disabled", "Enable it with PATCH {'status': 'enabled'} first."
    ),
    "too-many-webhooks": Kind(
        409, "Too many webhooks", "A tenant has at most 100. Delete one that is no longer used."
    ),
    "too-many-share-links": Kind(
        409,
        "Too many share links",
        "A record has at most 100 active share links. Revoke one that is no longer needed.",
    ),
    "storage-limit": Kind(
        409,
        "The storage limit of the tenant is reached",
        "The operator of this service limits how many records a tenant has, and how many bytes of "
        "bundles it keeps; the detail says which. Nothing of the request was kept. A shorter "
        "bundle_retention_days makes room for bundles once older ones have expired; the operator "
        "can raise either limit.",
    ),
    "cannot-revoke-own-key": Kind(
        409, "A key cannot revoke itself", "Revoke it with another admin key of the tenant."
    ),
    "job-state": Kind(
        409,
        "The job is not in that state",
        "Read the job: its status says what can be done with it.",
    ),
    "audit-chain-broken": Kind(
        409,
        "The audit chain is broken",
        "An entry of the audit chain is not what was written. The answer names the first such "
        "entry, what was expected and what was found. Keep the database as it is and investigate.",
    ),
    "log-pending": Kind(
        409,
        "Not in the log yet",
        "The transparency log integrates new leaves every second. Where the service waits for its "
        "witnesses, it publishes a checkpoint once they have cosigned it. Repeat the request after "
        "the seconds that Retry-After names. If the problem persists, /readyz names its cause.",
    ),
    "log-rolled-back": Kind(
        409,
        "The database is older than its log",
        "The published log is larger than the database's, or differs from it: the database was "
        "restored from a backup. Nothing is signed in this state. The operator restores the newest "
        "database or, if it is lost, begins a successor with `python -m app.manage log succeed`.",
    ),
    "log-head-lost": Kind(
        409,
        "The log's head is gone",
        "LOG_HEAD_URL holds no head although one was stored there, or no valid checkpoint. The "
        "operator restores it, or stores the database's own with `python -m app.manage log adopt`.",
    ),
    "log-head-unavailable": Kind(
        409,
        "The log's head cannot be reached",
        "The store at LOG_HEAD_URL does not answer. Nothing is published until it does.",
    ),
    "log-damaged": Kind(
        409,
        "The log is damaged",
        "The log's data in the database does not match the published log. Damaged data is never "
        "served. The operator checks it with `python -m app.manage log rebuild --check` and "
        "repairs it with `python -m app.manage log rebuild`.",
    ),
    "idempotency-key-in-use": Kind(
        409,
        "The first request is still running",
        "A request with the same Idempotency-Key has not been answered yet. Repeat this one later: "
        "it will get the first one's answer.",
    ),
    "bundle-expired": Kind(
        410,
        "The bundle has expired",
        "The tenant's retention period for this bundle has ended. Its existence remains provable: "
        "sha256 and log_index identify it. Its metadata, findings and log entry are still there.",
    ),
    "history-pruned": Kind(
        410,
        "Older than the retention period",
        "History is kept for a limited time. first_available is the first sequence number kept.",
    ),
    "precondition-failed": Kind(
        412,
        "Not the version that was asked for",
        "If-Match names another ETag than the current one; a bundle never changes.",
    ),
    "body-too-large": Kind(
        413, "The body is too large", "A body is at most 1 MiB, that of a record 8 MiB."
    ),
    "uri-too-long": Kind(414, "The URL is too long", "A URL is at most 8 KiB."),
    "unsupported-media-type": Kind(
        415,
        "The body is not declared as JSON",
        "Send Content-Type: application/json, and no Content-Encoding: bodies are not compressed.",
    ),
    "range-not-satisfiable": Kind(
        416,
        "The range lies outside",
        "Content-Range says how many bytes there are; ask for a range that begins among them.",
    ),
    "validation-failed": Kind(
        422,
        "Some fields were refused",
        "errors lists each: pointer (RFC 6901) is the place in the body, or the name of a query "
        'parameter or header, and detail says what to send. Types are strict: "30" is no number. '
        "Unknown fields are refused.",
    ),
    "outlives-parent": Kind(
        422,
        "The key would outlive the one that mints it",
        "A key that expires mints only keys that expire no later. Send an earlier expires_at, or "
        "omit it to get the minting key's own.",
    ),
    "idempotency-key-reused": Kind(
        422,
        "The Idempotency-Key was used before",
        "An Idempotency-Key belongs to one body for 24 hours. Use a new key for a new request.",
    ),
    "rate-limited": Kind(
        429, "Too many requests", "Retry after the seconds that Retry-After names."
    ),
    "headers-too-large": Kind(
        431, "The headers are too large", "Headers are at most 16 KiB in all."
    ),
    "internal-error": Kind(
        500,
        "Internal error",
        "A fault of this service, which was logged. Quote request_id when you report it.",
    ),
    "evidence-pack-failed": Kind(
        503,
        "The evidence pack could not be built",
        "job_id is the dead job; GET /v1/jobs/:id says why it failed. A key with the role write "
        "retries it with POST /v1/jobs/:id/retry. An hour after its end, the next request for the "
        "pack starts a new job. The record's bundle and log-proof can be read meanwhile.",
    ),
    "evidence-pack-unreadable": Kind(
        503,
        "The stored evidence pack does not open",
        "Repeat the request after the seconds that Retry-After names. A damaged pack has been "
        "deleted, and a new one is built. A pack sealed under a master key that the service lacks "
        "is kept until its operator restores that key.",
    ),
    "busy": Kind(
        503,
        "Too many large requests at once",
        "Few large records are read and written at a time, and each tenant and each reader has a "
        "share of the memory for that. Nothing was changed. Repeat the request after the seconds "
        "that Retry-After names.",
    ),
    "unavailable": Kind(
        503,
        "The database does not answer",
        "Repeat the request after the seconds that Retry-After names. If it creates something, "
        "send an Idempotency-Key: the first request may have been executed.",
    ),
}
