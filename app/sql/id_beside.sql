-- Returns a new random id with the moment of another: both lie in the same partition, and ids of a
-- batch sort as its events do.
-- Called by `emit_events`.
--
-- event_id                an id whose first half is kept (UUIDv7)
CREATE OR REPLACE FUNCTION id_beside(event_id uuid) RETURNS uuid LANGUAGE sql VOLATILE AS $$
    SELECT encode(substr(uuid_send(event_id), 1, 8)
                  || substr(uuid_send(gen_random_uuid()), 9), 'hex')::uuid
$$;
