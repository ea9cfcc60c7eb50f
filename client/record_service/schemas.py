"""The shapes of what the service takes and answers, as types.

Made by `python -m dev.client_types`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Union

if TYPE_CHECKING:
    from typing_extensions import NotRequired
elif sys.version_info >= (3, 11):
    from typing import NotRequired

# A moment: RFC 3339, or a datetime with its offset.
Time = Union[str, datetime]

AnchoredBy = Literal["log", "timestamps", "witnesses"]
BundleVisibility = Literal["private", "public"]
DeliveryStatus = Literal["cancelled", "failed", "pending", "retrying", "sending", "succeeded"]
EntryOutcome = Literal["failed", "refused", "success"]
EventTypeName = Literal["audit.chain_broken", "finding.created", "history.rolled_back", "record.created", "session.completed", "session.opened", "webhook.disabled", "webhook.failing", "webhook.test"]
HoldStatus = Literal["released", "standing"]
JobStatus = Literal["cancelled", "dead", "queued", "retrying", "running", "succeeded"]
Kinds = Literal["audit.chain_broken", "history.rolled_back", "rule.failing", "webhook.disabled", "webhook.failing", "webhook.refusing"]
On = Literal["record", "session", "step"]
Order = Literal["asc", "desc"]
Role = Literal["admin", "read", "write"]
SessionStatus = Literal["completed", "open"]
Severity = Literal["critical", "high", "info", "low", "medium"]
Source = Literal["api", "otlp", "rule"]
StepName = Literal["day", "hour"]
TraceStatus = Literal["assembled", "dropped", "incomplete", "rejected", "staged"]
WebhookStatus = Literal["disabled", "enabled"]


class Accounting(TypedDict):
    accepted: int
    succeeded: int
    failed: int
    cancelled: int
    pending: int
    arrived_by_replay: int
    cancelled_arrived_by_replay: int
    balanced: bool
    counted: bool
    tests: Line
    replays: Line


class Actor(TypedDict):
    type: str
    id: str
    role: NotRequired[Role]
    person: NotRequired[Person]


class Agent(TypedDict):
    id: str
    external_id: str | None
    name: str
    version: str | None
    description: str | None
    metadata: dict[str, Any] | None
    created_at: str
    updated_at: str


class AgentChange(TypedDict):
    name: NotRequired[str]
    version: NotRequired[str | None]
    description: NotRequired[str | None]
    metadata: NotRequired[Mapping[str, Any] | None]
    external_id: NotRequired[str | None]


class AgentsListQuery(TypedDict):
    external_id: NotRequired[str]
    name: NotRequired[str]
    q: NotRequired[str]


class AlertMail(TypedDict):
    id: str
    to: str
    status: str
    alerts: int | None
    refusals: int
    error: str | None
    said: str | None
    brief: bool
    claimed_at: str
    data_at: str | None
    sent_at: str | None


class Alerts(TypedDict):
    emails: list[str]
    kinds: list[Kinds]


class AlertsChange(TypedDict):
    emails: Sequence[str]
    kinds: NotRequired[Sequence[Kinds]]


class Anchor(TypedDict):
    seq: int
    hash: str
    at: str
    chain: str
    log_proof: LogProof | None
    vkey: str | None
    timestamp: str | None
    tsa_chain: str | None
    cosignatures: list[str]


class Anchors(TypedDict):
    enabled: bool
    disabled_since: str | None
    checked: int
    pending: int
    leaf_index: int | None
    anchored_by: list[AnchoredBy] | None
    timestamps: int | None
    timestamps_unverified: int | None
    newest_timestamp: NewestTimestamp | None
    cosignatures: int | None


class Approval(TypedDict):
    approved_by: str
    at: Time
    decision: str
    note: NotRequired[str]


class Attempt(TypedDict):
    number: int
    at: str
    outcome: str
    status: int | None
    error: str | None
    timings: Timings
    headers: list[list[str]] | None
    body: str | None
    body_base64: str | None


class AttemptSummary(TypedDict):
    number: int
    at: str
    outcome: str
    status: int | None
    error: str | None
    timings: Timings


class AuditListQuery(TypedDict):
    layout: NotRequired[Literal["chain", "events"]]
    since: NotRequired[Time]
    until: NotRequired[Time]
    order: NotRequired[Order]
    actor: NotRequired[str]
    target: NotRequired[str]
    action: NotRequired[str]
    outcome: NotRequired[EntryOutcome]


class AuditVerifyQuery(TypedDict):
    seq: NotRequired[int]
    hash: NotRequired[str]
    chain: NotRequired[str]
    since: NotRequired[Literal["anchor"]]
    full: NotRequired[Literal["0", "1"]]


class BatchedRecord(TypedDict):
    session_id: str
    kind: str
    title: str
    occurred_at: NotRequired[Time]
    labels: NotRequired[Mapping[str, str]]
    content: Any
    steps: NotRequired[Sequence[Step]]
    approvals: NotRequired[Sequence[Approval]]
    idempotency_key: NotRequired[str]


class BulkReplay(TypedDict):
    ids: NotRequired[Sequence[str]]
    group: NotRequired[str]
    status: NotRequired[Literal["failed", "cancelled", "skipped"] | Sequence[Literal["failed", "cancelled", "skipped"]]]
    event_type: NotRequired[EventTypeName | Sequence[EventTypeName]]
    since: NotRequired[Time]
    until: NotRequired[Time]
    failed_since: NotRequired[Time]
    failed_until: NotRequired[Time]
    rate: NotRequired[int]
    canary: NotRequired[int]
    stop_after_failures: NotRequired[int]
    as_of: NotRequired[Time]
    dry_run: NotRequired[bool]


class Bundle(TypedDict):
    sha256: str
    size: int
    key_id: str
    signature: str
    expired: bool


class BySeverity(TypedDict):
    info: int
    low: int
    medium: int
    high: int
    critical: int


class Case(TypedDict):
    matched: int
    record: dict[str, Any] | None
    content: Any
    steps: list[dict[str, Any]] | None
    session: dict[str, Any] | None


class Check(TypedDict):
    name: str
    ok: bool | None
    detail: str


class Completion(TypedDict):
    outcome: Literal["succeeded", "failed", "cancelled"]
    summary: NotRequired[str | None]


class Concurrency(TypedDict):
    now: int
    allowed: int


class Decision(TypedDict):
    event_id: str
    event_type: EventTypeName
    webhook_id: str
    decision: str
    explanation: str
    summary: str
    lane: Lane
    deliveries: list[Delivery]


class DeliveriesDecisionsQuery(TypedDict):
    event_id: str


class DeliveriesGroupsQuery(TypedDict):
    event_id: NotRequired[str]
    session_id: NotRequired[str]
    record_id: NotRequired[str]
    finding_id: NotRequired[str]
    webhook_id: NotRequired[str]
    job_id: NotRequired[str]
    outcome: NotRequired[str]
    status_code: NotRequired[int]
    event_type: NotRequired[EventTypeName]
    since: NotRequired[Time]
    until: NotRequired[Time]
    status: NotRequired[Sequence[Literal["failed", "retrying"]]]


class DeliveriesListQuery(TypedDict):
    event_type: NotRequired[EventTypeName]
    since: NotRequired[Time]
    until: NotRequired[Time]
    status: NotRequired[Sequence[DeliveryStatus]]
    after: NotRequired[int]
    lane: NotRequired[int]
    epoch: NotRequired[str]


class DeliveriesOfTenantQuery(TypedDict):
    event_id: NotRequired[str]
    session_id: NotRequired[str]
    record_id: NotRequired[str]
    finding_id: NotRequired[str]
    webhook_id: NotRequired[str]
    job_id: NotRequired[str]
    outcome: NotRequired[str]
    status_code: NotRequired[int]
    event_type: NotRequired[EventTypeName]
    since: NotRequired[Time]
    until: NotRequired[Time]
    status: NotRequired[Sequence[DeliveryStatus]]
    group: NotRequired[str]
    finished_since: NotRequired[Time]
    finished_until: NotRequired[Time]


class Delivery(TypedDict):
    id: str
    webhook_id: str
    event_id: str
    event_type: EventTypeName
    kind: str
    sequence: int | None
    lane: NotRequired[int]
    status: DeliveryStatus
    replay_of: str | None
    arrived_by_replay: str | None
    job_id: str | None
    attempt_count: int
    last_attempt: AttemptSummary | None
    next_attempt_at: str | None
    created_at: str
    finished_at: str | None


class DeliveryDetail(TypedDict):
    id: str
    webhook_id: str
    event_id: str
    event_type: EventTypeName
    kind: str
    sequence: int | None
    lane: NotRequired[int]
    status: DeliveryStatus
    replay_of: str | None
    arrived_by_replay: str | None
    job_id: str | None
    attempt_count: int
    last_attempt: AttemptSummary | None
    next_attempt_at: str | None
    created_at: str
    finished_at: str | None
    payload: dict[str, Any] | None
    attempts: list[Attempt]


class Diagnosis(TypedDict):
    valid: bool
    checks: list[Check]
    advice: str


class Digest(TypedDict):
    id: str
    status: Literal["pending", "sending", "sent", "uncertain", "content_refused", "recipient_refused", "cancelled"]
    findings: int | None
    repeats: str | None
    refusals: int
    error: str | None
    said: str | None
    brief: bool
    claimed_at: str
    data_at: str | None
    sent_at: str | None


class Entry(TypedDict):
    seq: int
    at: str
    tenant_id: str
    actor: Actor
    action: str
    target: Target
    details: dict[str, Any]
    request_id: str | None
    outcome: NotRequired[EntryOutcome]
    origin: NotRequired[str | None]
    prev_hash: str
    hash: str


class EntryError(TypedDict):
    pointer: str
    detail: str


class EntryProblem(TypedDict):
    status: int
    type: str
    errors: list[EntryError]


class Error(TypedDict):
    at: str
    detail: str
    record_id: str | None
    session_id: str | None
    step: int | None
    count: int


class Event(TypedDict):
    id: str
    type: EventTypeName
    created_at: str
    payload: dict[str, Any]
    webhooks: list[WebhookDecision]


class EventType(TypedDict):
    type: EventTypeName
    description: str
    data_schema: dict[str, Any]
    example: dict[str, Any]


class EventsFeedQuery(TypedDict):
    after: NotRequired[str]
    type: NotRequired[EventTypeName]
    limit: NotRequired[int]
    wait: NotRequired[int]


class Example(TypedDict):
    about: str
    name: str
    on: On
    when: str
    severity: Severity
    title: str
    detail: str | None
    dedupe: str | None
    max_per_hour: int
    cases: list[Case]


class ExpiredFindings(TypedDict):
    day: str
    findings: int
    by_severity: BySeverity


class Export(TypedDict):
    id: str
    since: str
    until: str
    agent_id: str | None
    state: Literal["making", "ready", "failed", "deleted"]
    job_id: str
    progress: dict[str, Any] | None
    error: str | None
    records: int | None
    size: int
    sha256: str | None
    statement: dict[str, Any] | None
    download_url: str | None
    created_at: str
    created_by: str
    made_at: str | None
    expires_at: str | None
    deleted_at: str | None


class Failure(TypedDict):
    detail: str
    record_id: str | None
    session_id: str | None
    step: int | None


class FailureGroup(TypedDict):
    group: str
    webhook_id: str
    outcome: str | None
    status_code: int | None
    error: str | None
    count: int
    retrying: int
    arrived_by_replay: int
    first_at: str
    last_at: str
    example_id: str


class FailureGroups(TypedDict):
    data: list[FailureGroup]
    window: int
    complete: bool


class Feed(TypedDict):
    data: list[Payload]
    next_after: str


class Finding(TypedDict):
    agent_id: str
    created_at: str
    data: Any
    detail: str | None
    id: str
    principal: str
    record_id: str | None
    rule: str
    session_id: str
    severity: Severity
    source: Source
    title: str


class Findings(TypedDict):
    data: list[Finding]


class FindingsListExpiredQuery(TypedDict):
    rule: NotRequired[str]


class FindingsListQuery(TypedDict):
    agent_id: NotRequired[str]
    principal: NotRequired[str]
    since: NotRequired[Time]
    until: NotRequired[Time]
    q: NotRequired[str]
    session_id: NotRequired[str]
    record_id: NotRequired[str]
    severity: NotRequired[Severity]
    source: NotRequired[Source]
    rule: NotRequired[str]
    digest_id: NotRequired[str]


class Head(TypedDict):
    seq: int
    hash: str


class Hit(TypedDict):
    type: Literal["record", "finding", "session", "agent", "event", "delivery", "webhook", "job", "digest", "key", "share_link", "rule", "export", "hold"]
    id: str
    title: str
    url: str


class Hits(TypedDict):
    data: list[Hit]


class Hold(TypedDict):
    id: str
    reason: str
    record_id: str | None
    session_id: str | None
    agent_id: str | None
    since: str | None
    until: str | None
    status: HoldStatus
    created_at: str
    created_by: str
    released_at: str | None
    released_by: str | None


class HoldsListQuery(TypedDict):
    status: NotRequired[HoldStatus]
    record_id: NotRequired[str]
    session_id: NotRequired[str]
    agent_id: NotRequired[str]


class Inclusion(TypedDict):
    leaf_index: int
    leaf_hash: str
    tree_size: int
    root: str
    inclusion: list[str]


class Job(TypedDict):
    id: str
    kind: str
    args: dict[str, Any]
    status: JobStatus
    attempts: int
    run_at: str
    progress: dict[str, Any] | None
    error: str | None
    created_at: str
    finished_at: str | None


class JobsListQuery(TypedDict):
    kind: NotRequired[str]
    status: NotRequired[JobStatus]
    record_id: NotRequired[str]


class Jwks(TypedDict):
    keys: list[dict[str, Any]]


class Key(TypedDict):
    id: str
    name: str
    role: Role
    pin: Pin | None
    expires_at: str | None
    created_at: str
    created_by: str | None
    minted_by: Minter | None
    last_used_at: str | None
    revoked_at: str | None


class KeysListQuery(TypedDict):
    q: NotRequired[str]


class KeysRevokeQuery(TypedDict):
    descendants: NotRequired[bool]


class Lane(TypedDict):
    state: Literal["deleted", "disabled", "held", "paused", "slow", "sending", "idle"]
    until: str | None


class LaneHealth(TypedDict):
    state: Literal["ok", "slow", "refusing", "failing", "paused", "held", "disabled"]
    consecutive_failures: int
    paused_until: str | None
    failing_since: str | None
    refusing_since: str | None
    refused_status: int | None
    last_success_at: str | None
    slow: bool
    concurrency: Concurrency


class LeftOut(TypedDict):
    arrived_since: int
    already_waiting: int
    not_sending: int


class Line(TypedDict):
    accepted: int
    succeeded: int
    failed: int
    cancelled: int
    pending: int


class ListedDelivery(TypedDict):
    id: str
    webhook_id: str
    event_id: str
    event_type: EventTypeName
    kind: str
    sequence: int | None
    lane: NotRequired[int]
    status: DeliveryStatus
    replay_of: str | None
    arrived_by_replay: str | None
    job_id: str | None
    attempt_count: int
    last_attempt: AttemptSummary | None
    next_attempt_at: str | None
    created_at: str
    finished_at: str | None
    payload: NotRequired[dict[str, Any]]


class ListedRecord(TypedDict):
    id: str
    session_id: str
    agent_id: str
    principal: str
    kind: str
    title: str
    labels: dict[str, str]
    occurred_at: str
    created_at: str
    bundle: Bundle
    log: Log
    held: NotRequired[bool]
    content: NotRequired[Any]
    steps: NotRequired[Any]
    approvals: NotRequired[Any]
    damaged: NotRequired[bool]


class Log(TypedDict):
    status: Literal["pending", "integrated"]
    index: int | None


class LogInclusionQuery(TypedDict):
    leaf_hash: NotRequired[str]
    index: NotRequired[int]
    size: NotRequired[int]


class LogProof(TypedDict):
    leaf_index: int
    leaf_data: str
    leaf_hash: str
    tree_size: int
    inclusion: list[str]
    checkpoint: str


class MatchCount(TypedDict):
    hour: int
    day: int


class MintedKey(TypedDict):
    id: str
    name: str
    role: Role
    pin: Pin | None
    expires_at: str | None
    created_at: str
    created_by: str | None
    minted_by: Minter | None
    last_used_at: str | None
    revoked_at: str | None
    key: str


class MintedShareLink(TypedDict):
    id: str
    record_id: str
    expires_in_seconds: int
    expires_at: str
    active: bool
    created_at: str
    created_by: str
    revoked_at: str | None
    opened: int
    last_opened_at: str | None
    url: str


class Minter(TypedDict):
    id: str
    name: str | None


class Moved(TypedDict):
    count: int
    job_id: str | None


class NamedAgent(TypedDict):
    name: NotRequired[str]
    version: NotRequired[str | None]
    description: NotRequired[str | None]
    metadata: NotRequired[Mapping[str, Any] | None]


class NamedSession(TypedDict):
    principal: str
    title: NotRequired[str | None]
    metadata: NotRequired[Mapping[str, Any] | None]
    agent_id: NotRequired[str]
    agent_external_id: NotRequired[str]


class NewAgent(TypedDict):
    name: str
    version: NotRequired[str | None]
    description: NotRequired[str | None]
    metadata: NotRequired[Mapping[str, Any] | None]
    external_id: NotRequired[str | None]


class NewExport(TypedDict):
    since: Time
    until: Time
    agent_id: NotRequired[str | None]


class NewFinding(TypedDict):
    session_id: NotRequired[str]
    record_id: NotRequired[str]
    rule: str
    severity: Severity
    title: str
    detail: NotRequired[str | None]
    data: NotRequired[Any]


class NewFindings(TypedDict):
    findings: Sequence[NewFinding]


class NewHold(TypedDict):
    reason: str
    record_id: NotRequired[str]
    session_id: NotRequired[str]
    agent_id: NotRequired[str]
    since: NotRequired[Time]
    until: NotRequired[Time]


class NewKey(TypedDict):
    name: str
    role: Role
    pin: NotRequired[Pin | None]
    expires_at: NotRequired[Time | None]
    expires_in: NotRequired[Literal["1h", "1d", "7d", "30d", "90d", "365d"]]


class NewRecord(TypedDict):
    session_id: str
    kind: str
    title: str
    occurred_at: NotRequired[Time]
    labels: NotRequired[Mapping[str, str]]
    content: Any
    steps: NotRequired[Sequence[Step]]
    approvals: NotRequired[Sequence[Approval]]


class NewRule(TypedDict):
    name: str
    on: On
    when: str
    severity: Severity
    title: str
    detail: NotRequired[str | None]
    dedupe: NotRequired[str | None]
    max_per_hour: NotRequired[int]
    enabled: NotRequired[bool]


class NewSession(TypedDict):
    principal: str
    title: NotRequired[str | None]
    metadata: NotRequired[Mapping[str, Any] | None]
    agent_id: str
    external_id: NotRequired[str | None]


class NewShareLink(TypedDict):
    expires_in_seconds: NotRequired[int]


class NewWebhook(TypedDict):
    url: str
    headers: NotRequired[Mapping[str, str] | None]
    event_types: NotRequired[Sequence[EventTypeName] | None]
    description: NotRequired[str | None]
    max_in_flight: NotRequired[int]
    lanes: NotRequired[int]


class NewestTimestamp(TypedDict):
    size: int
    at: str


class OwnKey(TypedDict):
    id: str
    name: str
    role: Role
    pin: Pin | None
    expires_at: str | None
    created_at: str
    created_by: str | None
    minted_by: Minter | None
    last_used_at: str | None
    revoked_at: str | None
    tenant_id: str


class Pasted(TypedDict):
    headers: Mapping[str, str]
    body: NotRequired[str]
    body_base64: NotRequired[str]
    received_at: NotRequired[Time]


class Payload(TypedDict):
    id: str
    type: EventTypeName
    timestamp: str
    data: dict[str, Any]


class Person(TypedDict):
    issuer: str
    subject: str
    name: str
    email: str | None


class Pin(TypedDict):
    agent_id: str
    principal: str


class Predecessor(TypedDict):
    origin: str
    size: int
    held: int


class Preview(TypedDict):
    count: int
    oldest: str | None
    newest: str | None
    left_out: LeftOut
    seconds: int | None
    as_of: str


class Record(TypedDict):
    id: str
    session_id: str
    agent_id: str
    principal: str
    kind: str
    title: str
    labels: dict[str, str]
    occurred_at: str
    created_at: str
    bundle: Bundle
    log: Log
    held: NotRequired[bool]


class RecordOrProblem(TypedDict):
    id: NotRequired[str]
    session_id: NotRequired[str]
    agent_id: NotRequired[str]
    principal: NotRequired[str]
    kind: NotRequired[str]
    title: NotRequired[str]
    labels: NotRequired[dict[str, str]]
    occurred_at: NotRequired[str]
    created_at: NotRequired[str]
    bundle: NotRequired[Bundle]
    log: NotRequired[Log]
    held: NotRequired[bool]
    problem: NotRequired[EntryProblem]


class Records(TypedDict):
    data: list[RecordOrProblem]


class RecordsCreateBatchQuery(TypedDict):
    records: Sequence[BatchedRecord]
    atomic: NotRequired[bool]


class RecordsListQuery(TypedDict):
    agent_id: NotRequired[str]
    principal: NotRequired[str]
    since: NotRequired[Time]
    until: NotRequired[Time]
    q: NotRequired[str]
    session_id: NotRequired[str]
    kind: NotRequired[str]
    label: NotRequired[Sequence[str]]
    trace_id: NotRequired[str]
    occurred_since: NotRequired[Time]
    occurred_until: NotRequired[Time]
    order: NotRequired[Order]
    after: NotRequired[str]
    include: NotRequired[Literal["content"]]


class Result(TypedDict):
    evaluated: int
    matched: int
    errors: int
    matches: list[Sample]
    ms: float
    error: Failure | None


class RetryNow(TypedDict):
    rate: NotRequired[int]


class Rotation(TypedDict):
    overlap_seconds: NotRequired[int]


class Rule(TypedDict):
    id: str
    name: str
    on: On
    when: str
    severity: Severity
    title: str
    detail: str | None
    dedupe: str | None
    max_per_hour: int
    enabled: bool
    version: int
    state: Literal["on", "off", "failing"]
    last_error: Error | None
    matches: MatchCount
    created_at: str
    updated_at: str


class RuleBackfill(TypedDict):
    since: Time
    until: Time
    rate: NotRequired[int]
    dry_run: NotRequired[bool]


class RuleChange(TypedDict):
    name: NotRequired[str]
    on: NotRequired[On]
    when: NotRequired[str]
    severity: NotRequired[Severity]
    title: NotRequired[str]
    detail: NotRequired[str | None]
    dedupe: NotRequired[str | None]
    max_per_hour: NotRequired[int]
    enabled: NotRequired[bool]


class RuleExamples(TypedDict):
    data: list[Example]


class RuleTest(TypedDict):
    name: NotRequired[str]
    on: On
    when: str
    severity: NotRequired[Severity]
    title: str
    detail: NotRequired[str | None]
    dedupe: NotRequired[str | None]
    max_per_hour: NotRequired[int]
    enabled: NotRequired[bool]
    record_ids: NotRequired[Sequence[str]]
    since: NotRequired[Time]
    until: NotRequired[Time]
    limit: NotRequired[int]


class Sample(TypedDict):
    record_id: str | None
    session_id: str | None
    step: int | None
    title: str


class SearchSearchQuery(TypedDict):
    q: str
    limit: NotRequired[int]


class Session(TypedDict):
    id: str
    external_id: str | None
    agent_id: str
    principal: str
    title: str | None
    metadata: dict[str, Any] | None
    status: SessionStatus
    outcome: Literal["succeeded", "failed", "cancelled", "abandoned"] | None
    summary: str | None
    created_at: str
    completed_at: str | None


class SessionsListQuery(TypedDict):
    agent_id: NotRequired[str]
    principal: NotRequired[str]
    since: NotRequired[Time]
    until: NotRequired[Time]
    status: NotRequired[SessionStatus]
    external_id: NotRequired[str]
    q: NotRequired[str]


class Settings(TypedDict):
    bundle_visibility: BundleVisibility
    bundle_retention_days: int | None
    anchoring_enabled: bool
    notification_email: str | None


class SettingsChange(TypedDict):
    bundle_visibility: NotRequired[BundleVisibility]
    bundle_retention_days: NotRequired[int | None]
    anchoring_enabled: NotRequired[bool]
    notification_email: NotRequired[str | None]


class ShareLink(TypedDict):
    id: str
    record_id: str
    expires_in_seconds: int
    expires_at: str
    active: bool
    created_at: str
    created_by: str
    revoked_at: str | None
    opened: int
    last_opened_at: str | None


class Since(TypedDict):
    seq: int
    hash: str
    leaf_index: int


class Stats(TypedDict):
    data: list[StatsRow]


class StatsRow(TypedDict):
    at: str
    accepted: int
    attempted: int
    succeeded: int
    failed: int
    retried: int
    p50_ms: int | None
    p95_ms: int | None


class StatsTenantQuery(TypedDict):
    since: NotRequired[Time]
    until: NotRequired[Time]
    step: NotRequired[StepName]


class StatsWebhookQuery(TypedDict):
    since: NotRequired[Time]
    until: NotRequired[Time]
    step: NotRequired[StepName]


class Step(TypedDict):
    name: str
    kind: str
    started_at: Time
    ended_at: Time | None
    status: Literal["ok", "error", "unset"]
    attributes: NotRequired[Mapping[str, Any]]
    inputs: NotRequired[Sequence[str] | Mapping[str, Any]]
    outputs: NotRequired[Sequence[str] | Mapping[str, Any]]
    events: NotRequired[Sequence[StepEvent]]
    span_id: NotRequired[str]
    parent_span_id: NotRequired[str]
    links: NotRequired[Sequence[StepLink]]


class StepEvent(TypedDict):
    name: str
    at: Time
    attributes: NotRequired[Mapping[str, Any]]


class StepLink(TypedDict):
    trace_id: str
    span_id: str
    attributes: NotRequired[Mapping[str, Any]]


class Target(TypedDict):
    type: str
    id: str


class Timings(TypedDict):
    dns: float | None
    connect: float | None
    tls: float | None
    first_byte: float | None
    total: float | None


class Trace(TypedDict):
    trace_id: str
    status: TraceStatus
    spans: int
    bytes: int
    reason: str | None
    record_ids: list[str]
    service: str | None
    exporter: str | None
    at: str


class TracesListQuery(TypedDict):
    status: NotRequired[TraceStatus]


class Verification(TypedDict):
    status: Literal["intact", "intact-since-anchor"]
    verified_at: str
    chain: str
    entries: int
    head: Head
    anchored_through: int | None
    unanchored_entries: int
    anchors: Anchors
    log: VerifiedLog | None
    head_store: str
    unknown_chains: int | None
    unknown_chains_at: str | None
    since: NotRequired[Since]
    leaves_read_from: NotRequired[int]


class VerifiedLog(TypedDict):
    origin: str
    size: int
    root: str
    predecessors: list[Predecessor]


class Version(TypedDict):
    version: int
    name: str
    on: On
    when: str
    severity: Severity
    title: str
    detail: str | None
    dedupe: str | None
    max_per_hour: int
    created_by: str
    created_at: str


class Webhook(TypedDict):
    id: str
    url: str
    headers: dict[str, Any] | None
    event_types: list[EventTypeName] | None
    description: str | None
    max_in_flight: int
    lanes: int
    status: WebhookStatus
    disabled_reason: str | None
    held: bool
    held_since: str | None
    health: LaneHealth
    created_at: str
    updated_at: str


class WebhookChange(TypedDict):
    url: NotRequired[str]
    headers: NotRequired[Mapping[str, str] | None]
    event_types: NotRequired[Sequence[EventTypeName] | None]
    description: NotRequired[str | None]
    max_in_flight: NotRequired[int]
    lanes: NotRequired[int]
    status: NotRequired[WebhookStatus]
    held: NotRequired[bool]


class WebhookDecision(TypedDict):
    webhook_id: str
    decision: str
    explanation: str
    deliveries: list[Delivery]


class WebhookWithSecret(TypedDict):
    id: str
    url: str
    headers: dict[str, Any] | None
    event_types: list[EventTypeName] | None
    description: str | None
    max_in_flight: int
    lanes: int
    status: WebhookStatus
    disabled_reason: str | None
    held: bool
    held_since: str | None
    health: LaneHealth
    created_at: str
    updated_at: str
    secret: str


class WebhooksAccountingQuery(TypedDict):
    exact: NotRequired[bool]
