"""The tables, one aggregate a file; `migrations/` creates them, a test holds both together.

`base`; `tenants`, `agents`, `keys`; `records`, `sharing`, `evidence_packs`, `findings`; `webhooks`,
`deliveries`, `delivery_hours`; `traces`, `rules`; `jobs`, `digests`; `proofs/`.
"""

from app.models.agents import (
    Agent,
    AgentSession,
    FormerAgentName,
    SessionDigests,
    SessionStatement,
)
from app.models.base import Base
from app.models.deliveries import DeliveryAttempt, EndedDelivery, Event, OpenDelivery
from app.models.delivery_hours import BacklogHour, DeliveryHour, TenantHour
from app.models.digests import Alert, AlertMail, AlertRecipient, Digest
from app.models.evidence_packs import (
    EvidenceExport,
    EvidencePack,
    EvidencePackPart,
    Export,
    ExportPart,
    ExportTaker,
)
from app.models.findings import ExpiredFindings, Finding, FindingWords
from app.models.jobs import NO_TENANT, CounterValue, Job
from app.models.keys import (
    ApiKey,
    ConsoleSession,
    IdempotencyKey,
    KnownPerson,
    MasterKey,
    OperatorSession,
    SavedView,
    SigningKey,
    TenantGroup,
)
from app.models.proofs.anchors import (
    AnchoringTrouble,
    AuditAnchor,
    CheckpointCosignature,
    CheckpointTimestamp,
)
from app.models.proofs.audit import (
    AuditBreak,
    AuditEntry,
    AuditHead,
    AuditSegment,
    RecordRead,
    RefusedAccess,
)
from app.models.proofs.log import LogCheckpoint, LogGeneration, LogLeaf, LogTile
from app.models.records import (
    Bundle,
    BundleWords,
    DeadBlob,
    Hold,
    Record,
    RecordWords,
    StoredRecords,
)
from app.models.rules import (
    Rule,
    RuleDedupe,
    RuleHour,
    RuleMatch,
    RulePeriod,
    RuleTurn,
    RuleVersion,
    RuleWork,
)
from app.models.sharing import ShareLink, ShareLinkOpening
from app.models.tenants import Tenant, TenantFigures, WordPosition
from app.models.traces import StagedSpan, Trace
from app.models.webhooks import Lane, LaneSlot, Webhook, WebhookLane

__all__ = [
    "NO_TENANT",
    "Agent",
    "AgentSession",
    "Alert",
    "AlertMail",
    "AlertRecipient",
    "AnchoringTrouble",
    "ApiKey",
    "AuditAnchor",
    "AuditBreak",
    "AuditEntry",
    "AuditHead",
    "AuditSegment",
    "BacklogHour",
    "Base",
    "Bundle",
    "BundleWords",
    "CheckpointCosignature",
    "CheckpointTimestamp",
    "ConsoleSession",
    "CounterValue",
    "DeadBlob",
    "DeliveryAttempt",
    "DeliveryHour",
    "Digest",
    "EndedDelivery",
    "Event",
    "EvidenceExport",
    "EvidencePack",
    "EvidencePackPart",
    "ExpiredFindings",
    "Export",
    "ExportPart",
    "ExportTaker",
    "Finding",
    "FindingWords",
    "FormerAgentName",
    "Hold",
    "IdempotencyKey",
    "Job",
    "KnownPerson",
    "Lane",
    "LaneSlot",
    "LogCheckpoint",
    "LogGeneration",
    "LogLeaf",
    "LogTile",
    "MasterKey",
    "OpenDelivery",
    "OperatorSession",
    "Record",
    "RecordRead",
    "RecordWords",
    "RefusedAccess",
    "Rule",
    "RuleDedupe",
    "RuleHour",
    "RuleMatch",
    "RulePeriod",
    "RuleTurn",
    "RuleVersion",
    "RuleWork",
    "SavedView",
    "SessionDigests",
    "SessionStatement",
    "ShareLink",
    "ShareLinkOpening",
    "SigningKey",
    "StagedSpan",
    "StoredRecords",
    "Tenant",
    "TenantFigures",
    "TenantGroup",
    "TenantHour",
    "Trace",
    "Webhook",
    "WebhookLane",
    "WordPosition",
]
