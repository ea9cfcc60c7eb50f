"""The tables that the ORM reads; `migrations/` describes them and all others, and a test compares.

`base`; `records`, and the `service` itself.
"""

from app.models.base import Base as Base
from app.models.records import Agent as Agent
from app.models.records import AgentSession as AgentSession
from app.models.records import BundleWords as BundleWords
from app.models.records import Event as Event
from app.models.records import Export as Export
from app.models.records import Finding as Finding
from app.models.records import FindingWords as FindingWords
from app.models.records import Hold as Hold
from app.models.records import Record as Record
from app.models.records import RecordWords as RecordWords
from app.models.records import Rule as Rule
from app.models.records import RuleVersion as RuleVersion
from app.models.records import SessionStatement as SessionStatement
from app.models.records import ShareLink as ShareLink
from app.models.records import Trace as Trace
from app.models.records import Webhook as Webhook
from app.models.service import NO_TENANT as NO_TENANT
from app.models.service import Alert as Alert
from app.models.service import AlertMail as AlertMail
from app.models.service import AlertRecipient as AlertRecipient
from app.models.service import AnchoringTrouble as AnchoringTrouble
from app.models.service import ApiKey as ApiKey
from app.models.service import AuditAnchor as AuditAnchor
from app.models.service import AuditEntry as AuditEntry
from app.models.service import AuditHead as AuditHead
from app.models.service import Digest as Digest
from app.models.service import Job as Job
from app.models.service import KnownPerson as KnownPerson
from app.models.service import LogGeneration as LogGeneration
from app.models.service import SavedView as SavedView
from app.models.service import SigningKey as SigningKey
from app.models.service import Tenant as Tenant
