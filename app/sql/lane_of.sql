-- Returns the key of one of a webhook's lanes: its id, in which another digit stands for the version.
-- The first lane's is the webhook's id itself. As `ids.lane_of`.
-- Called by `make_lanes` and `emit_events`.
--
-- webhook                 the webhook
-- number                  which lane, from 1 to 16
CREATE OR REPLACE FUNCTION lane_of(webhook uuid, number integer) RETURNS uuid
LANGUAGE sql IMMUTABLE AS $$
    SELECT overlay(webhook::text PLACING to_hex((number + 6) % 16) FROM 15 FOR 1)::uuid
$$;
