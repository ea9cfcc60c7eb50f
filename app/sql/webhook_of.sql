-- Returns the webhook of a lane's key (`lane_of`). As `ids.webhook_of`.
-- Called by statements of app/core that begin with a delivery or a lane.
--
-- lane                    the lane
CREATE OR REPLACE FUNCTION webhook_of(lane uuid) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
    SELECT overlay(lane::text PLACING '7' FROM 15 FOR 1)::uuid
$$;
