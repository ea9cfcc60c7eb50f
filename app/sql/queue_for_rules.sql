-- Trigger on `records` after INSERT, for each statement, and on `sessions` when one is completed:
-- notes in `rule_work` what the rules of its tenant are to judge. A tenant that never had a rule has
-- no row in `rule_turns`, and nothing to judge. Read by app/core/rules/judging.py. No arguments.
CREATE OR REPLACE FUNCTION queue_for_rules() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        INSERT INTO rule_work (tenant_id, at, subject_id, is_session)
        SELECT NEW.tenant_id, NEW.completed_at, NEW.id, true
         WHERE EXISTS (SELECT FROM rule_turns AS t WHERE t.tenant_id = NEW.tenant_id);
    ELSE
        INSERT INTO rule_work (tenant_id, at, subject_id, is_session)
        SELECT c.tenant_id, c.created_at, c.id, false FROM changed AS c
         WHERE EXISTS (SELECT FROM rule_turns AS t WHERE t.tenant_id = c.tenant_id);
    END IF;
    RETURN NULL;
END $$;
