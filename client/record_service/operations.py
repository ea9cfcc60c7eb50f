"""The service's operations, by resource and verb.

Made by `python -m dev.client_types`.
"""

from __future__ import annotations

from typing import NamedTuple


class Operation(NamedTuple):
    """A route: its method and path, how its answer is read, what it does.

    `answer` is json, rows, bytes, text or none. Where there is a `body`, `query` names what goes
    into the query.
    """

    method: str
    path: str
    answer: str
    summary: str
    body: bool = False
    query: tuple[str, ...] = ()


OPERATIONS: dict[str, dict[str, Operation]] = {
    "agents": {
        "list": Operation("GET", "/v1/agents", "rows", "List agents, newest first."),
        "create": Operation("POST", "/v1/agents", "json", "Create an agent.", body=True),
        "put": Operation("PUT", "/v1/agents/by-external-id/{external_id}", "json", "Get or create an agent by its external id.", body=True),
        "read": Operation("GET", "/v1/agents/{agent_id}", "json", "Read an agent."),
        "change": Operation("PATCH", "/v1/agents/{agent_id}", "json", "Change an agent.", body=True),
    },
    "anchors": {
        "list": Operation("GET", "/v1/audit/anchors", "rows", "List the anchors of the audit chain"),
    },
    "audit": {
        "list": Operation("GET", "/v1/audit", "rows", "List the audit chain, or export it."),
        "verify": Operation("GET", "/v1/audit/verify", "json", "Verify the audit chain."),
    },
    "bundles": {
        "bundle": Operation("GET", "/v1/records/{record_id}/bundle", "bytes", "Read the exact bytes that were signed"),
        "prov": Operation("GET", "/v1/records/{record_id}/prov.json", "json", "Read the record as W3C PROV-JSON"),
        "otlp_logs": Operation("GET", "/v1/records/{record_id}/otlp-logs.json", "json", "Read what happened as OpenTelemetry logs"),
        "otlp_traces": Operation("GET", "/v1/records/{record_id}/otlp-traces.json", "json", "Read the record and its steps as OpenTelemetry spans"),
        "read_log_proof": Operation("GET", "/v1/records/{record_id}/log-proof", "json", "Read the inclusion proof of a record"),
    },
    "deliveries": {
        "list": Operation("GET", "/v1/webhooks/{webhook_id}/deliveries", "rows", "List a webhook's deliveries, newest first, or catch up after a sequence number"),
        "read": Operation("GET", "/v1/webhooks/{webhook_id}/deliveries/{delivery_id}", "json", "Read a delivery with its payload and every attempt"),
        "decisions": Operation("GET", "/v1/webhooks/{webhook_id}/decisions", "json", "Explain why a webhook did or did not get an event"),
        "test": Operation("POST", "/v1/webhooks/{webhook_id}/test", "json", "Send a test event to a webhook"),
        "replay_one": Operation("POST", "/v1/webhooks/{webhook_id}/deliveries/{delivery_id}/replay", "json", "Replay a delivery at once"),
        "retry_now": Operation("POST", "/v1/webhooks/{webhook_id}/retry-now", "json", "Send all waiting deliveries of a webhook now", body=True),
        "retry_one_now": Operation("POST", "/v1/webhooks/{webhook_id}/deliveries/{delivery_id}/retry-now", "json", "Send one waiting delivery now"),
        "of_tenant": Operation("GET", "/v1/deliveries", "rows", "List the deliveries of all webhooks, newest first"),
        "groups": Operation("GET", "/v1/deliveries/groups", "json", "Group failed deliveries by webhook and cause"),
    },
    "digests": {
        "list": Operation("GET", "/v1/digests", "rows", "List digests, newest first, and say when the next is due"),
    },
    "events": {
        "list_types": Operation("GET", "/v1/event-types", "rows", "List the types of events"),
        "feed": Operation("GET", "/v1/events", "json", "Follow all events, without a webhook"),
        "read": Operation("GET", "/v1/events/{event_id}", "json", "Read an event, with the routing decision and the deliveries of every webhook"),
    },
    "evidence_packs": {
        "evidence": Operation("GET", "/v1/records/{record_id}/evidence.zip", "bytes", "Read the evidence pack of a record"),
    },
    "exports": {
        "list": Operation("GET", "/v1/exports", "rows", "List exports, newest first"),
        "create": Operation("POST", "/v1/exports", "json", "Export all records of a period, signed", body=True),
        "read": Operation("GET", "/v1/exports/{export_id}", "json", "Read an export: its state, its totals and where its file is"),
        "delete": Operation("DELETE", "/v1/exports/{export_id}", "none", "Delete an export's file, or stop its making"),
        "statement": Operation("GET", "/v1/exports/{export_id}/statement", "bytes", "Read the exact bytes that were signed"),
        "download": Operation("GET", "/v1/exports/{export_id}/export.ndjson", "bytes", "Download the file of an export that is ready"),
    },
    "findings": {
        "list": Operation("GET", "/v1/findings", "rows", "Search findings, or list them; newest first."),
        "create": Operation("POST", "/v1/findings", "json", "Add a finding.", body=True),
        "create_batch": Operation("POST", "/v1/findings/batch", "json", "Add up to 1000 findings, all or none.", body=True),
        "list_expired": Operation("GET", "/v1/findings/expired", "rows", "Count the findings that have expired, by the day on which they were created"),
        "read": Operation("GET", "/v1/findings/{finding_id}", "json", "Read a finding."),
    },
    "holds": {
        "list": Operation("GET", "/v1/holds", "rows", "List legal holds, newest first, released ones too"),
        "create": Operation("POST", "/v1/holds", "json", "Place a legal hold", body=True),
        "read": Operation("GET", "/v1/holds/{hold_id}", "json", "Read a legal hold"),
        "release": Operation("DELETE", "/v1/holds/{hold_id}", "none", "Release a legal hold"),
    },
    "jobs": {
        "list": Operation("GET", "/v1/jobs", "rows", "List jobs, newest first"),
        "read": Operation("GET", "/v1/jobs/{job_id}", "json", "Read a job"),
        "retry": Operation("POST", "/v1/jobs/{job_id}/retry", "json", "Retry a dead job from where it stopped"),
        "cancel": Operation("POST", "/v1/jobs/{job_id}/cancel", "json", "Cancel a job"),
        "resume": Operation("POST", "/v1/jobs/{job_id}/resume", "json", "Resume a cancelled job from where it stopped"),
    },
    "keys": {
        "list": Operation("GET", "/v1/keys", "rows", "List keys, newest first."),
        "mint": Operation("POST", "/v1/keys", "json", "Mint a key.", body=True),
        "self": Operation("GET", "/v1/keys/self", "json", "Read the key in use, and its tenant."),
        "revoke": Operation("DELETE", "/v1/keys/{key_id}", "none", "Revoke a key, at once and for good."),
    },
    "log": {
        "checkpoint": Operation("GET", "/v1/log/checkpoint", "text", "Read the newest published checkpoint, a signed note"),
        "old_checkpoint": Operation("GET", "/v1/log/{generation}/checkpoint", "text", "Read the newest published checkpoint, a signed note"),
        "key": Operation("GET", "/v1/log/key", "text", "Read the key that verifies checkpoints, as one line `name+hash+base64`."),
        "old_key": Operation("GET", "/v1/log/{generation}/key", "text", "Read the key that verifies checkpoints, as one line `name+hash+base64`."),
        "tile": Operation("GET", "/v1/log/tile/{tile}", "bytes", "Read a tile or an entry bundle"),
        "old_tile": Operation("GET", "/v1/log/{generation}/tile/{tile}", "bytes", "Read a tile or an entry bundle"),
        "inclusion": Operation("GET", "/v1/log/proof/inclusion", "json", "Read the inclusion proof of a leaf (RFC 9162)."),
        "jwks": Operation("GET", "/.well-known/jwks.json", "json", "Read all public keys that ever signed, with their dates"),
    },
    "records": {
        "list": Operation("GET", "/v1/records", "rows", "Search records, or list them newest first, or follow them with `order=asc`."),
        "create": Operation("POST", "/v1/records", "json", "Sign and store a record of what an agent did.", body=True),
        "create_batch": Operation("POST", "/v1/records/batch", "json", "Sign and store up to 1000 records", body=True, query=("atomic",)),
        "read": Operation("GET", "/v1/records/{record_id}", "json", "Read a record's metadata, which remains after its bundle has expired."),
    },
    "replays": {
        "replay_webhook": Operation("POST", "/v1/webhooks/{webhook_id}/replay", "json", "Replay deliveries of a webhook", body=True),
        "replay_tenant": Operation("POST", "/v1/deliveries/replay", "json", "Replay deliveries of all webhooks", body=True),
    },
    "rules": {
        "list": Operation("GET", "/v1/rules", "rows", "List rules, newest first"),
        "create": Operation("POST", "/v1/rules", "json", "Create a rule", body=True),
        "examples": Operation("GET", "/v1/rules/examples", "json", "List ready rules"),
        "read": Operation("GET", "/v1/rules/{rule_id}", "json", "Read a rule"),
        "change": Operation("PATCH", "/v1/rules/{rule_id}", "json", "Change a rule, or switch it on or off", body=True),
        "delete": Operation("DELETE", "/v1/rules/{rule_id}", "none", "Delete a rule"),
        "versions": Operation("GET", "/v1/rules/{rule_id}/versions", "rows", "List a rule's versions, newest first, also of one that was deleted"),
        "test": Operation("POST", "/v1/rules/test", "json", "Try a rule on the past", body=True),
        "backfill": Operation("POST", "/v1/rules/{rule_id}/backfill", "json", "Let a rule judge the past", body=True),
    },
    "search": {
        "search": Operation("GET", "/v1/search", "json", "Find any resource by its id or name; records and findings by words"),
    },
    "session_evidence": {
        "evidence": Operation("GET", "/v1/sessions/{session_id}/evidence.zip", "bytes", "Read the evidence pack of a whole session"),
    },
    "sessions": {
        "list": Operation("GET", "/v1/sessions", "rows", "List sessions, newest first."),
        "create": Operation("POST", "/v1/sessions", "json", "Open a session.", body=True),
        "put": Operation("PUT", "/v1/sessions/by-external-id/{external_id}", "json", "Get or open a session by its external id.", body=True),
        "read": Operation("GET", "/v1/sessions/{session_id}", "json", "Read a session."),
        "read_statement": Operation("GET", "/v1/sessions/{session_id}/statement", "bytes", "Read the signed statement of a completed session"),
        "complete": Operation("POST", "/v1/sessions/{session_id}/complete", "json", "Complete a session, once.", body=True),
    },
    "share_links": {
        "list": Operation("GET", "/v1/records/{record_id}/share-links", "rows", "List a record's share links, newest first"),
        "mint": Operation("POST", "/v1/records/{record_id}/share-links", "json", "Create a share link", body=True),
        "revoke": Operation("DELETE", "/v1/records/{record_id}/share-links/{share_link_id}", "none", "Revoke a share link, at once and for good"),
    },
    "signatures": {
        "verify": Operation("POST", "/v1/webhooks/{webhook_id}/verify-signature", "json", "Find out why a receiver refuses a signature", body=True),
    },
    "stats": {
        "tenant": Operation("GET", "/v1/stats", "json", "Count the traffic of all webhooks, by hour or day"),
        "webhook": Operation("GET", "/v1/webhooks/{webhook_id}/stats", "json", "Count the traffic of a webhook, by hour or day"),
    },
    "tenant": {
        "settings": Operation("GET", "/v1/tenant/settings", "json", "Read the settings."),
        "change_settings": Operation("PATCH", "/v1/tenant/settings", "json", "Change settings.", body=True),
        "alerts": Operation("GET", "/v1/tenant/alerts", "json", "Read who is told of troubles"),
        "set_alerts": Operation("PUT", "/v1/tenant/alerts", "json", "Set who is told of troubles", body=True),
        "alert_mails": Operation("GET", "/v1/tenant/alerts/mails", "rows", "List the mails of alerts, newest first, with what became of each"),
    },
    "traces": {
        "list": Operation("GET", "/v1/traces", "rows", "List traces that exporters sent, and what became of them; the newest first."),
    },
    "webhooks": {
        "list": Operation("GET", "/v1/webhooks", "rows", "List webhooks, newest first"),
        "create": Operation("POST", "/v1/webhooks", "json", "Create a webhook", body=True),
        "read": Operation("GET", "/v1/webhooks/{webhook_id}", "json", "Read a webhook"),
        "change": Operation("PATCH", "/v1/webhooks/{webhook_id}", "json", "Change a webhook", body=True),
        "delete": Operation("DELETE", "/v1/webhooks/{webhook_id}", "none", "Delete a webhook"),
        "rotate_secret": Operation("POST", "/v1/webhooks/{webhook_id}/rotate-secret", "json", "Rotate a webhook's secret", body=True),
        "check": Operation("POST", "/v1/webhooks/{webhook_id}/check", "json", "Check how a receiver verifies deliveries"),
        "accounting": Operation("GET", "/v1/webhooks/{webhook_id}/accounting", "json", "Read a webhook's accounting"),
    },
}
