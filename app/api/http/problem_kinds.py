"""The problem types (RFC 9457): each has a status, a title and advice for its page."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """One kind of problem: its status, its title, and what its page tells the reader to do."""

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
        "Send Authorization: Bearer with a key, or x-api-key. A key that was revoked, has expired "
        "or never existed is answered alike; ask an administrator of your tenant for a new one.",
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
        "The key is pinned to one agent and principal, and what was asked belongs to the whole "
        "tenant. Use a key without a pin.",
    ),
    "wider-than-pin": Kind(
        403, "The pin would be wider", "A pinned key mints only keys with exactly its own pin."
    ),
    "tenant-suspended": Kind(
        403,
        "The tenant is suspended",
        "The operator of this service has suspended the tenant of this key. Nothing is lost: once "
        "it is resumed, the same keys are good again, and what waits to be delivered goes out.",
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
        "(16,384). Send it again on a better line. The connection was closed.",
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
        "The transparency log takes what is new every second. Where the service waits for its "
        "witnesses, it publishes that once they have cosigned it. Repeat the request after the "
        "seconds that Retry-After names. If it stays so, /readyz says what keeps the log.",
    ),
    "log-rolled-back": Kind(
        409,
        "The database is older than its log",
        "More was published than the database holds, or something else: it was restored from a "
        "backup. Nothing is signed in this state. The operator restores the newest database, or, "
        "where that is lost, begins a successor with `python -m app.manage log succeed`.",
    ),
    "log-head-lost": Kind(
        409,
        "The log's head is gone",
        "LOG_HEAD_URL holds no head although one was kept, or no checkpoint. The operator puts it "
        "back, or has the database's own kept with `python -m app.manage log adopt`.",
    ),
    "log-head-unavailable": Kind(
        409,
        "The log's head cannot be reached",
        "Where LOG_HEAD_URL points does not answer. Nothing is published until it does.",
    ),
    "log-damaged": Kind(
        409,
        "The log is damaged",
        "What the database holds of the log does not give what was published, and nothing damaged "
        "is served. The operator looks with `python -m app.manage log rebuild --check`, and mends "
        "it with `python -m app.manage log rebuild`.",
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
        "Its tenant keeps bundles for a limited time, and this one's has ended. That it was there "
        "is still provable: sha256 and log_index name it; metadata, findings and log entry remain.",
    ),
    "history-pruned": Kind(
        410,
        "Older than the retention period",
        "History is kept for a limited time. first_available is the first number that is kept.",
    ),
    "precondition-failed": Kind(
        412,
        "Not the version that was asked for",
        "If-Match names another ETag than the one there is; a bundle never changes.",
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
        "errors names each: pointer (RFC 6901) is the place in the body, or the name of a query "
        'parameter or header, and detail says what to send. Types are strict: "30" is no number. '
        "Fields that do not exist are refused.",
    ),
    "outlives-parent": Kind(
        422,
        "The key would outlive the one that mints it",
        "A key that expires mints only keys that expire no later. Send an earlier expires_at, or "
        "none: it is the minting key's own then.",
    ),
    "idempotency-key-reused": Kind(
        422,
        "The Idempotency-Key was used before",
        "An Idempotency-Key belongs to one body for 24 hours. Use a new key for a new request.",
    ),
    "rate-limited": Kind(
        429, "Too many requests", "Come back after the seconds that Retry-After names."
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
        "job_id is the job that gave up; GET /v1/jobs/:id says why. A key with the role write has "
        "it tried again by POST /v1/jobs/:id/retry; an hour after its end the next request for the "
        "pack begins another. The record's bundle and log-proof can be read meanwhile.",
    ),
    "evidence-pack-unreadable": Kind(
        503,
        "The stored evidence pack does not open",
        "Repeat the request after the seconds that Retry-After names. What was changed has been "
        "deleted, and another is built. What was sealed under a master key that the service does "
        "not have now is kept, until its operator has put that key back.",
    ),
    "busy": Kind(
        503,
        "Too many large requests at once",
        "Large records are read and written a few at a time, and each tenant and each reader has a "
        "share of the memory for that. Nothing was done. Repeat the request after the seconds that "
        "Retry-After names.",
    ),
    "unavailable": Kind(
        503,
        "The database does not answer",
        "Repeat the request after the seconds that Retry-After names; if it creates something, "
        "with an Idempotency-Key, for the first one may have been carried out.",
    ),
}
