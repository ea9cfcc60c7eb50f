-- Returns the slots of a lane as they are now, by number.
-- Called by app/core/delivery/lanes/lane_slots.py and `claim_deliveries`.
--
-- tenant, webhook         the lane
CREATE OR REPLACE FUNCTION present_slots(tenant uuid, webhook uuid)
RETURNS TABLE (slot smallint, version bigint, holder uuid, lease_until timestamptz)
LANGUAGE sql STABLE AS $$
    SELECT newest.slot, newest.version, newest.holder, newest.lease_until
      FROM generate_series(0, (SELECT s.slot FROM lane_slots AS s
                                WHERE s.tenant_id = tenant AND s.webhook_id = webhook
                                ORDER BY s.slot DESC, s.version DESC LIMIT 1)) AS n
     CROSS JOIN LATERAL (
        SELECT * FROM lane_slots AS s
         WHERE s.tenant_id = tenant AND s.webhook_id = webhook AND s.slot = n
         ORDER BY s.version DESC LIMIT 1) AS newest
$$;
