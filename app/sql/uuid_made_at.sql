-- Returns the moment that an id holds in its first 48 bits (UUIDv7), to the millisecond.
-- Called by `drop_history_partition`.
--
-- id                      the id
CREATE OR REPLACE FUNCTION uuid_made_at(id uuid) RETURNS timestamptz LANGUAGE sql STABLE AS $$
    SELECT to_timestamp(('x' || left(replace(id::text, '-', ''), 12))::bit(48)::bigint / 1000.0)
$$;
