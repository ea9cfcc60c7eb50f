-- Returns the hour in which an event counts as accepted: that in which it was made, or, of one that
-- got its number more than a day later, the first of the last day. Hours before do not change any
-- more, so app/core/delivery/hours.py can sum them.
-- Called by app/core/delivery/lanes/lanes.py and `claim_deliveries`.
--
-- made_at                 when its delivery was made
CREATE OR REPLACE FUNCTION accepted_hour(made_at timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
    SELECT date_trunc('hour', greatest(made_at, now() - interval '1 day'), 'UTC')
$$;
