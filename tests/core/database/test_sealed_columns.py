"""Nothing that is sealed is forgotten when keys are rotated: the list is held to all there is."""

import ast
from pathlib import Path

from sqlalchemy import Engine, text

from app.core.master_keys.resealing import SEALED_COLUMNS

ROOT = Path(__file__).resolve().parents[3]

# Every other column of bytes, and why nothing in it is sealed.
PLAIN = {
    "api_keys.digest": "a hash",
    "audit_anchors.hash": "a hash",
    "audit_anchors.leaf_hash": "a hash",
    "audit_entries.body": "what the tenant reads and hashes",
    "audit_entries.hash": "a hash",
    "audit_heads.hash": "a hash",
    "audit_segments.sha256": "a hash",
    "checkpoint_cosignatures.key_hash": "names a public key",
    "checkpoint_timestamps.response": "an authority's public answer",
    "checkpoints.note": "published",
    "checkpoints.root": "published",
    "checkpoints.unpublished_note": "to be published",
    "console_sessions.digest": "a hash",
    "operator_sessions.digest": "a hash",
    "earlier_attempts.response_body": "what a receiver answered",
    "ended_deliveries.response_body": "what a receiver answered",
    "stored_events.decisions": "numbers",
    "stored_events.payload": "what receivers are sent",
    "evidence_packs.sha256": "a hash",
    "exports.sha256": "a hash",
    "exports.signature": "given out in exports",
    "exports.statement": "likewise",
    "idempotency_keys.body_sha256": "a keyed hash, under what the caller sent",
    "idempotency_keys.scope": "a hash",
    "log_leaves.data": "published",
    "log_leaves.leaf_hash": "a hash",
    "log_tiles.data": "published",
    "records.bundle_sha256": "a hash",
    "records.signature": "published in bundles",
    "rule_dedupes.text_hash": "a hash",
    "session_digests.digests": "hashes",
    "session_digests.root": "a hash",
    "session_statements.body": "given out; names, which other columns have in clear",
    "session_statements.root": "a hash",
    "session_statements.sha256": "a hash",
    "session_statements.signature": "given out",
    "share_link_openings.address_hash": "a hash",
    "share_links.digest": "a hash",
    "signing_keys.public_key": "published",
    "staged_spans.body": "for seconds, and a key is good for 2^32 seals",
    "staged_spans.resource": "likewise",
    "staged_spans.span_id": "an exporter's id",
    "staged_spans.trace_id": "an exporter's id",
    "tenants.chain_salt": "the verifier's, and counts only with its seal",
    "traces.assembled": "exporters' ids",
    "traces.trace_id": "an exporter's id",
}
# Who seals what is in no row: it ends with its key, as docs/operations.md says.
LEAVES = {"app/api/http/paging.py", "app/core/digests/letters.py"}


def test_every_column_of_bytes_is_sealed_anew_or_known_to_be_plain(admin_engine: Engine) -> None:
    query = """
    SELECT c.relname || '.' || a.attname FROM pg_attribute AS a
      JOIN pg_class AS c ON c.oid = a.attrelid
     WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p')
       AND NOT c.relispartition AND NOT a.attisdropped AND a.attnum > 0
       AND format_type(a.atttypid, NULL) IN ('bytea', 'bytea[]')
    """
    with admin_engine.connect() as connection:
        columns = set(connection.scalars(text(query)))
    places = [str(place) for place in SEALED_COLUMNS]
    assert len(places) == len(set(places))
    assert columns == {*places, *PLAIN}
    assert not {*places} & PLAIN.keys()


def test_every_module_that_seals_has_its_place_in_the_list_or_lets_it_leave() -> None:
    sealing = {
        path.relative_to(ROOT).as_posix()
        for folder in ("app", "jobs", "scheduler")
        for path in (ROOT / folder).rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "seal"
        and "master_keys" in ast.unparse(call.func.value)
    }
    listed = {f"{place.identity.__module__.replace('.', '/')}.py" for place in SEALED_COLUMNS}
    assert sealing == listed | LEAVES


def test_each_place_names_its_table_s_primary_key_with_the_tenant_first(
    admin_engine: Engine,
) -> None:
    query = """
    SELECT a.attname FROM pg_index AS i
      JOIN unnest(i.indkey) WITH ORDINALITY AS k (number, place) ON true
      JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.number
     WHERE i.indisprimary AND i.indrelid = to_regclass(:table) ORDER BY k.place
    """
    with admin_engine.connect() as connection:
        for place in SEALED_COLUMNS:
            found = connection.scalars(text(query), {"table": place.table})
            assert tuple(found) == place.key
    with_tenant = [place for place in SEALED_COLUMNS if place.has_tenant]
    assert {place.key[0] for place in with_tenant} == {"tenant_id", "id"}
    assert {place.table for place in with_tenant if place.key[0] == "id"} == {"tenants"}
