-- Returns a moment as answers write it: RFC 3339 in UTC, with microseconds.
-- Called by `add_findings` and the view `events`.
--
-- moment                  the moment
CREATE OR REPLACE FUNCTION written_time(moment timestamptz) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT to_char(moment AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
$$;
