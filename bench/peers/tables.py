"""The tables that the peers write to, each in a database of its own."""

CELERY = """
CREATE TABLE deliveries (
    id bigint PRIMARY KEY, url text NOT NULL, payload bytea NOT NULL,
    status text NOT NULL DEFAULT 'pending', attempts smallint NOT NULL DEFAULT 0,
    claimed_at timestamptz, finished_at timestamptz);
CREATE TABLE attempts (
    id bigserial PRIMARY KEY, delivery_id bigint NOT NULL, status_code smallint,
    started_at timestamptz NOT NULL, total_ms real, headers text, body bytea);
CREATE INDEX ON attempts (delivery_id);
"""

ROUTE = "CREATE TABLE things (id bigserial PRIMARY KEY, kind text NOT NULL, body text NOT NULL)"
