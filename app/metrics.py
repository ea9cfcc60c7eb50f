"""All metrics of the service: every counter and histogram by name.

Figures are of the whole stack, added up over processes (`app/counters.py`). Alerts and dashboards
are built on the names: add, never rename. docs/operations.md says which to alert on.
"""

from typing import Final

from app.lib.metric_registry import Counter, Histogram

_KINDS = ("event", "replay", "test")
_QUICK = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15)

# The web

HTTP_REQUESTS: Final = Counter(
    "http_requests", "Requests answered.", labels=("method", "route", "status")
)
HTTP_SECONDS: Final = Histogram(
    "http_request_duration_seconds",
    "Time from when a request was read, with its wait for a thread, to its answer.",
    bounds=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
    labels=("route",),
)
WEB_REFUSED: Final = Counter(
    "record_service_web_refused",
    "Requests refused, and responses aborted, to protect a web process from overload.",
    labels=("reason",),
    known=(
        ("slow_body",),
        ("slow_reader",),
        ("body_memory",),
        ("answer_memory",),
        ("large_work",),
    ),
)
CHAINS_BROKEN: Final = Counter(
    "record_service_audit_chain_broken", "Audit chains that did not verify, each time asked."
)

LOG_DAMAGED: Final = Counter(
    "record_service_log_damaged",
    "Requests refused because stored data of the transparency log is damaged.",
)

# The bell

BELL_RINGS: Final = Counter("record_service_bell_rings", "Wakeups of workers that were asked for.")
BELL_MESSAGES: Final = Counter("record_service_bell_messages", "Messages enqueued in Redis.")
REPLICA_READS: Final = Counter(
    "record_service_replica_reads",
    "Reads that may go to the replica, and where they went: there, or why not.",
    ("where",),
)
BELL_ERRORS: Final = Counter("record_service_bell_errors", "Commands that Redis did not answer.")
BELL_SKIPPED: Final = Counter(
    "record_service_bell_skipped",
    "Rings skipped: the circuit breaker is open, REDIS_URL is not set, or the queue is full.",
)

# The database

POOL_WAIT_SECONDS: Final = Histogram(
    "record_service_pool_wait_seconds",
    "Waits for a database connection while a process's are all in use; a wait times out at 10 s.",
    bounds=(0.001, 0.005, 0.025, 0.1, 0.5, 1, 2.5, 5, 10),
    labels=("process",),
)

# Workers and their lanes

MESSAGES: Final = Counter(
    "record_service_messages",
    "Messages that workers consumed, by result.",
    labels=("actor", "result"),
)
SWEEPS: Final = Counter("record_service_sweeps", "Sweeps for due work that was not rung.")
SWEPT: Final = Counter(
    "record_service_swept",
    "Lanes and jobs that the sweep rang: due retries, and rings that were lost.",
    labels=("what",),
    known=(("lane",), ("job",)),
)
TURNS: Final = Counter(
    "record_service_turns", "Runs of a worker on a lane, by result.", labels=("result",)
)
CLAIMS: Final = Counter("record_service_claims", "Deliveries claimed by a worker.")
CLAIMS_LOST: Final = Counter(
    "record_service_claims_lost",
    "Claims whose lease ended without an outcome, found when the delivery was claimed anew.",
)
HANDED_BACK: Final = Counter(
    "record_service_handed_back",
    "Deliveries claimed but not attempted and released, by reason.",
    labels=("reason",),
)
DUPLICATES: Final = Counter(
    "record_service_possible_duplicates",
    "POSTs that may be duplicates: an earlier worker was lost with the delivery, a kept-alive "
    "connection died after the request was written, or an answer was in doubt.",
    labels=("reason",),
    known=(("lost_claim",), ("reconnected",), ("answer_in_doubt",)),
)
FENCED: Final = Counter(
    "record_service_outcomes_fenced",
    "Outcomes that came after their lease was taken over, and changed nothing.",
)
REFUSED: Final = Counter(
    "record_service_outcomes_refused",
    "Outcomes that the database refused; their deliveries are sent again.",
)

# Attempts and deliveries

ATTEMPTS: Final = Counter(
    "record_service_attempts",
    "Attempts made, by outcome and class of status.",
    labels=("kind", "outcome", "code"),
)
ATTEMPT_SECONDS: Final = Histogram(
    "record_service_attempt_duration_seconds",
    "Time of an attempt, name resolution included.",
    bounds=_QUICK,
    labels=("outcome",),
)
PHASE_SECONDS: Final = Histogram(
    "record_service_attempt_phase_duration_seconds",
    "Time of each phase of an attempt: name resolution, connection, TLS, wait for the answer.",
    bounds=_QUICK,
    labels=("phase",),
)
DELAY_SECONDS: Final = Histogram(
    "record_service_delivery_delay_seconds",
    "Time from a delivery's creation to the first byte of its first attempt, if it was answered.",
    bounds=(*_QUICK, 30, 60, 300, 1800, 7200),
    labels=("kind",),
)
DELIVERIES: Final = Counter(
    "record_service_deliveries",
    "Deliveries that workers ended.",
    labels=("kind", "status"),
    known=tuple((kind, status) for kind in _KINDS for status in ("succeeded", "failed")),
)
PAUSES: Final = Counter("record_service_lane_pauses", "Pauses of lanes, each doubling counted.")
DISABLED: Final = Counter(
    "record_service_webhooks_disabled_by_service",
    "Webhooks that the service disabled by itself.",
    labels=("reason",),
    known=(("gone",), ("failing",), ("refusing",)),
)

# Traces

SPANS_ACCEPTED: Final = Counter("record_service_spans_accepted", "Spans that exporters sent.")
SPANS_REJECTED: Final = Counter(
    "record_service_spans_rejected", "Spans that can never be taken, told to their exporter."
)
STAGING_FULL: Final = Counter(
    "record_service_staging_full", "Requests refused for a tenant's bound of staged bytes."
)
SPANS_ASSEMBLED: Final = Counter("record_service_spans_assembled", "Spans assembled into records.")
TRACES: Final = Counter(
    "record_service_traces",
    "Traces looked at, by what came of it; `failed` is tried again, then rejected.",
    labels=("result",),
    known=(("assembled",), ("incomplete",), ("dropped",), ("failed",), ("rejected",)),
)
ASSEMBLY_SECONDS: Final = Histogram(
    "record_service_assembly_delay_seconds",
    "Time from a trace's last span to the record made of it.",
    bounds=(1, 2, 2.5, 3, 4, 5, 10, 30, 60, 120, 600, 3600),
)

# Digests

DIGESTS: Final = Counter(
    "record_service_digests",
    "Attempts to send digests and alerts, and cancelled ones, by outcome.",
    labels=("outcome",),
    known=(("sent",), ("refused",), ("uncertain",), ("cancelled",)),
)

# Jobs

JOB_STEPS: Final = Counter(
    "record_service_job_steps", "Steps of durable jobs.", labels=("kind", "result")
)

COUNTERS: Final = tuple(each for each in globals().values() if isinstance(each, Counter))
HISTOGRAMS: Final = tuple(each for each in globals().values() if isinstance(each, Histogram))
