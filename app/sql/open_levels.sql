-- Returns the levels of urgency of open deliveries: each is a range of `open_deliveries_due`, by the
-- time of the next attempt, and a place in `lanes.open_from`. No arguments.
-- Called by `claim_deliveries` and app/core/delivery/lanes.
CREATE OR REPLACE FUNCTION open_levels()
RETURNS TABLE (place integer, priority smallint, fresh boolean) LANGUAGE sql IMMUTABLE AS $$
    VALUES (1, 0::smallint, false), (2, 0::smallint, true), (3, 1::smallint, false),
           (4, 1::smallint, true), (5, 2::smallint, false)
$$;
