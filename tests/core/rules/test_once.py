"""Matches, each once: computed by another program, they equal the findings.

Workers are killed at any moment and take turns from each other, records commit out of order, and
rules are changed and switched meanwhile.
"""

import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, text

from app import ids
from app.core.callers import Caller, Role
from app.core.findings import Severity
from app.core.rules import rule_schemas, rules
from app.database import Database, cursor
from app.errors import Unavailable
from app.lib.crypto.sealing import MasterKeys
from app.settings import Settings
from tests.core.rules.turns import LEAST
from tests.support.callers.api import ApiOf, FreshTenant
from tests.support.callers.making import make_record, make_session, uuid_of

_RECORD = """
INSERT INTO records SELECT (jsonb_populate_record(r, %s::jsonb)).* FROM records AS r WHERE id = %s
"""
_BUNDLE = """
INSERT INTO bundles (tenant_id, record_id, size, bytes) VALUES (%s, %s, %s, %b)
"""
_STEP = {"name": "s", "kind": "k", "status": "ok", "attributes": {}}


class Agent:
    """Writes records as they are stored, in transactions that last as long as they like."""

    def __init__(self, database: Database, tenant: FreshTenant, model: dict[str, Any]) -> None:
        self.database = database
        self.tenant = tenant
        self.model = model
        self.numbers: dict[UUID, int] = {}

    def write(self, first: int, count: int, keys: MasterKeys, chance: random.Random) -> None:
        """Store records with numbers from `first` on; some commit late."""
        with self.database.transaction(self.tenant.id) as session:
            cur = cursor(session)
            model = uuid_of(self.model["id"])
            for number in range(first, first + count):
                (now,) = cur.execute("SELECT clock_timestamp()").fetchone() or (None,)
                assert now is not None
                record = ids.new(now)
                bundle = json.dumps({"content": {"n": number}, "steps": [_STEP] * (number % 3)})
                changed = {"id": str(record), "created_at": now.isoformat()}
                cur.execute(_RECORD, (json.dumps(changed), model))
                sealed = keys.seal(bundle.encode(), f"bundles/{self.tenant.id}/{record}")
                cur.execute(_BUNDLE, (self.tenant.id, record, len(bundle), sealed))
                self.numbers[record] = number
            if chance.random() < 0.2:
                time.sleep(chance.uniform(0, 0.4))


@pytest.mark.parametrize(
    "count", [800, pytest.param(100_000, marks=pytest.mark.toolbox)], ids=["few", "many"]
)
def test_matches_of_another_program_equal_the_findings(
    count: int,
    api: ApiOf,
    tenant: FreshTenant,
    settings: Settings,
    database: Database,
    environ: dict[str, str],
    admin_engine: Engine,
) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    sessions = [make_session(api()) for _ in range(20)]
    agent = Agent(database, tenant, make_record(api(), sessions[0]["id"]))
    admin = Caller(tenant.id, ids.new(), Role.ADMIN, None, "test")
    made = _rules(database, admin)
    written = threading.Event()

    def change() -> None:
        chance = random.Random(seed + 1)
        while not written.is_set():
            _change(database, admin, chance.choice(made), lambda rule: _any_change(rule, chance))
            written.wait(chance.uniform(0.02, 0.4))

    def complete() -> None:
        for session in sessions:
            answer = api().post(f"/v1/sessions/{session['id']}/complete", {"outcome": "failed"})
            assert answer.status_code == 200
            written.wait(0.05)

    def write(part: int) -> None:
        chance = random.Random(seed + part)
        for first in range(100 + part, count, 100):
            agent.write(first, 50, settings.master_keys, chance)

    threads = [threading.Thread(target=each) for each in (change, complete)]
    writers = [threading.Thread(target=write, args=(part,)) for part in (0, 50)]
    still = random.Random(seed)
    with _dying_workers(environ, seed) as finish:
        # Before the first change and after the last, so that two versions of a rule match for sure.
        agent.write(0, 100, settings.master_keys, still)
        for thread in (*threads, *writers):
            thread.start()
        for thread in writers:
            thread.join()
        written.set()
        for thread in threads:
            thread.join()
        while not _change(database, admin, made[0], _another_condition):
            pass
        agent.write(count, 50, settings.master_keys, still)
        kills = finish()

    expected, matched = _expected(admin_engine, tenant, agent.numbers)
    found = _found(admin_engine, tenant)
    assert Counter(found) == Counter(expected)
    assert len(agent.numbers) == count + 50
    assert kills >= LEAST
    assert matched == _counted(admin_engine, tenant)
    assert len({version for rule, version, *_ in expected if rule == made[0]}) > 1


def _rules(database: Database, admin: Caller) -> list[UUID]:
    with database.transaction(admin.tenant_id) as session:
        rules.prepare(session, admin.tenant_id)
    made = []
    for name, on, when in (
        ("a", "record", "content.n % 7 == 0"),
        ("b", "record", "content.n % 7 == 3"),
        ("c", "step", "record.kind != '' && 7 % 7 == 0"),
        ("d", "session", "session.outcome == 'failed' && 7 % 7 == 0"),
    ):
        body = {"name": name, "on": on, "when": when, "severity": Severity.LOW, "title": "t"}
        always: dict[str, Any] = {"enabled": True, "max_per_hour": 100_000}
        with database.transaction(admin.tenant_id) as session:
            made.append(rules.create(session, admin, body | always).id)
    return made


def _change(
    database: Database,
    admin: Caller,
    rule: UUID,
    wanted: Callable[[rule_schemas.Watched], dict[str, Any]],
) -> bool:
    """Change a rule; return whether its lock was to be had in two seconds."""
    try:
        with database.transaction(admin.tenant_id) as session:
            before = rules.find(session, admin.tenant_id, rule)
            rules.change(session, admin, rule, wanted(before), None)
    except Unavailable:
        return False
    return True


def _any_change(before: rule_schemas.Watched, chance: random.Random) -> dict[str, Any]:
    """Another condition, or switched on or off."""
    if chance.random() < 0.3:
        return {"enabled": not before.rule.enabled}
    return {"when": re.sub(r"\d$", str(chance.randrange(7)), before.text.condition)}


def _another_condition(before: rule_schemas.Watched) -> dict[str, Any]:
    condition = before.text.condition
    another = str((int(condition[-1]) + 1) % 7)
    return {"when": re.sub(r"\d$", another, condition), "enabled": True}


@contextmanager
def _dying_workers(environ: dict[str, str], seed: int) -> Iterator[Callable[[], int]]:
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.core.rules.turns", str(seed)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environ, "LOG_LEVEL": "warning"},
    )
    assert program.stdin is not None

    def finish() -> int:
        said, _ = program.communicate("enough\n", timeout=500)
        kills, status = said.splitlines()[-1].split()
        assert status == "0", said[-2_000:]
        return int(kills)

    try:
        yield finish
    finally:
        program.kill()
        program.wait()


def _expected(
    owner: Engine, tenant: FreshTenant, numbers: dict[UUID, int]
) -> tuple[list[tuple[UUID, int, UUID, int | None]], int]:
    """Return what each version should have found, from periods and records alone."""
    with owner.connect() as connection:
        periods = connection.execute(
            text(
                "SELECT p.rule_id, p.version, p.since, p.until, v.subject, v.condition"
                " FROM rule_periods AS p"
                " JOIN rule_versions AS v USING (tenant_id, rule_id, version)"
                " WHERE p.tenant_id = :tenant"
            ),
            {"tenant": tenant.id},
        ).all()
        subjects = connection.execute(
            text(
                "SELECT id, created_at, 'record' FROM records WHERE tenant_id = :tenant"
                " UNION ALL SELECT id, completed_at, 'session' FROM sessions"
                " WHERE tenant_id = :tenant AND completed_at IS NOT NULL"
            ),
            {"tenant": tenant.id},
        ).all()
    expected: list[tuple[UUID, int, UUID, int | None]] = []
    for subject, at, kind in subjects:
        for rule, version, since, until, on, condition in periods:
            if at < since or (until is not None and at >= until):
                continue
            if (on == "session") != (kind == "session"):
                continue
            wanted = int(condition[-1])
            if on == "record" and subject in numbers and numbers[subject] % 7 == wanted:
                expected.append((rule, version, subject, None))
            elif on == "step" and wanted == 0:
                steps = numbers.get(subject, 0) % 3
                expected += [(rule, version, subject, step) for step in range(steps)]
            elif on == "session" and wanted == 0:
                expected.append((rule, version, subject, None))
    return expected, len(expected)


def _found(owner: Engine, tenant: FreshTenant) -> list[tuple[UUID, int, UUID, int | None]]:
    with owner.connect() as connection:
        rows = connection.execute(
            text(
                "SELECT coalesce(record_id, session_id), data_json FROM findings"
                " WHERE tenant_id = :tenant AND source = 'rule'"
            ),
            {"tenant": tenant.id},
        ).all()
    found = [(subject, json.loads(data)["rule"]) for subject, data in rows]
    return [
        (uuid_of(rule["id"]), rule["version"], subject, rule.get("step")) for subject, rule in found
    ]


def _counted(owner: Engine, tenant: FreshTenant) -> int:
    with owner.connect() as connection:
        return int(
            connection.execute(
                text("SELECT coalesce(sum(matched), 0) FROM rule_hours WHERE tenant_id = :tenant"),
                {"tenant": tenant.id},
            ).scalar_one()
        )
