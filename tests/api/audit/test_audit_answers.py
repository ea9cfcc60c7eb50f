"""What the database's owner writes is never answered as a verification.

They own every row: finished jobs, open ones, their times. They do not have MASTER_KEYS.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Engine, text

from app.core.verification.result_cache import identity, seal
from app.lib import canonical_json
from app.lib.crypto.sealing import MasterKeys
from app.settings import Settings
from jobs.durable.run_job import work_on
from jobs.process.runtime import Runtime
from tests.support.callers.api import Answer, Api, FreshTenant
from tests.support.callers.making import refused, uuid_of
from tests.support.evidence.packing import opened_runtime
from tests.support.secrets import MASTER_KEYS

pytestmark = pytest.mark.usefixtures("forgotten")

PATH = "/v1/audit/verify"
# Whatever waits for nothing, and whatever would have to be picked up again.
NEVER = "timestamptz '2099-01-01'"


@dataclass(frozen=True)
class Attacked:
    """A tenant, a caller of it, the database's owner, and a worker that runs when it is told to."""

    api: Api
    tenant_id: UUID
    engine: Engine
    worker: Runtime

    def sql(self, statement: str, **values: Any) -> None:
        """Run the owner's SQL, which changes something; `:tenant` is the victim."""
        with self.engine.begin() as connection:
            done = connection.execute(text(statement), {"tenant": self.tenant_id} | values)
            assert done.rowcount > 0

    def scalar(self, query: str) -> Any:
        """Look something up."""
        with self.engine.connect() as connection:
            return connection.scalar(text(query), {"tenant": self.tenant_id})

    def break_chain(self) -> None:
        """Change entry 2, which says who got the root key."""
        self.sql(
            "UPDATE audit_entries SET body = body || ' ' WHERE tenant_id = :tenant AND seq = 2"
        )

    def plant(self, args: dict[str, str], **columns: str) -> None:
        """Insert a job that is asked what `args` say; `columns` are SQL expressions."""
        row = {"status": "'queued'", "progress": "NULL"} | columns
        names, values = ", ".join(row), ", ".join(row.values())
        asked = canonical_json.dumps(args).decode()
        self.sql(
            f"INSERT INTO jobs (tenant_id, id, kind, args, dedupe_key, {names})"
            f" VALUES (:tenant, :id, 'verify_audit', :args, :args, {values})",
            id=uuid4(),
            args=asked,
        )

    def ask(self, query: str = "") -> Answer:
        """Ask for a verification."""
        return self.api.get(PATH + query)

    def job(self, query: str = "") -> str:
        """Ask for what takes long; return the path of the job that does it."""
        answer = self.ask(query)
        assert answer.status_code == 202, answer.json
        return answer.headers["Location"]

    def work(self, place: str) -> None:
        """Have the worker do a job."""
        work_on(self.worker, self.tenant_id, uuid_of(place.rpartition("/")[2]))


@pytest.fixture
def attacked(
    api: Callable[..., Api], tenant: FreshTenant, admin_engine: Engine, settings: Settings
) -> Any:
    with opened_runtime(settings) as worker:
        yield Attacked(api(), tenant.id, admin_engine, worker)
    # What was planted is no row that others could work with.
    with admin_engine.begin() as connection:
        connection.execute(
            text("DELETE FROM jobs WHERE tenant_id = :tenant"), {"tenant": tenant.id}
        )


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every verification a job."""
    monkeypatch.setattr("app.api.resources.audit.audit._SECONDS", 0.0)


def quoted(progress: Any) -> str:
    return "'" + json.dumps(progress).replace("'", "''").replace(":", "\\:") + "'"


def questions(attacked: Attacked) -> list[tuple[str, dict[str, Any]]]:
    """Return good questions as they are asked, with a job's arguments for each."""
    good = attacked.ask().json
    head, name = good["head"], good["chain"]
    return [
        ("", {}),
        ("?full=1", {"full": "1"}),
        ("?since=anchor", {"since": "anchor"}),
        (f"?chain={name}", {"chain": name}),
        (f"?seq={head['seq']}&hash={head['hash']}", dict(head)),
    ]


@pytest.mark.parametrize("number", range(5))
def test_an_answer_that_the_owner_planted_is_not_given(attacked: Attacked, number: int) -> None:
    query, args = questions(attacked)[number]
    good = attacked.ask(query).json
    attacked.break_chain()
    attacked.plant(args, status="'succeeded'", progress=quoted(good), finished_at=NEVER)
    attacked.plant(args, status="'succeeded'", progress=quoted(good), finished_at="now()")
    assert refused(attacked.ask(query), 409, "audit-chain-broken")["seq"] == 2


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("finished", ["now()", NEVER])
def test_nor_where_a_job_would_answer(attacked: Attacked, finished: str) -> None:
    attacked.work(attacked.job())
    good = attacked.ask().json
    assert good["status"] == "intact"
    attacked.sql("DELETE FROM jobs WHERE tenant_id = :tenant")
    attacked.break_chain()
    attacked.plant({}, status="'succeeded'", progress=quoted(good), finished_at=finished)
    attacked.work(attacked.job())
    assert refused(attacked.ask(), 409, "audit-chain-broken")["seq"] == 2


OPEN = [
    {"status": "'running'", "run_at": NEVER, "locked_until": NEVER},
    {"status": "'running'", "locked_until": NEVER},
    {"status": "'running'", "locked_until": "'infinity'"},
    {"status": "'retrying'", "run_at": NEVER},
    {"run_at": "now() - interval '1 year'", "claim_no": str(2**63 - 1)},
    {"run_at": "'-infinity'", "ring_at": NEVER},
]


@pytest.mark.parametrize("columns", OPEN)
def test_a_job_that_never_moves_holds_back_no_answer(
    attacked: Attacked, columns: dict[str, str]
) -> None:
    attacked.plant({}, **columns)
    assert attacked.ask().json["status"] == "intact"
    attacked.break_chain()
    assert refused(attacked.ask(), 409, "audit-chain-broken")["seq"] == 2


def sealed_for(
    attacked: Attacked, master_keys: MasterKeys = MASTER_KEYS, **changed: Any
) -> Callable[[timedelta], tuple[UUID, str]]:
    """Return what seals "intact" for a job of the victim's, at a distance from now."""
    job_id = uuid4()
    asked: dict[str, Any] = {
        "tenant_id": attacked.tenant_id,
        "job_id": job_id,
        "question": "{}",
    } | changed
    found = {"status": "intact", "verified_at": "2026-01-31T12:00:00.123456Z"}

    def sealed(distance: timedelta) -> tuple[UUID, str]:
        now = attacked.scalar("SELECT clock_timestamp()") + distance
        return job_id, json.dumps(seal(master_keys, identity(**asked), found, now))

    return sealed


def plant_sealed(attacked: Attacked, job_id: UUID, progress: str, finished: str) -> None:
    attacked.sql(
        "INSERT INTO jobs (tenant_id, id, kind, args, dedupe_key, status, progress, finished_at)"
        " VALUES (:tenant, :id, 'verify_audit', '{}', '{}', 'succeeded', :progress,"
        f" clock_timestamp() + interval '{finished}')",
        id=job_id,
        progress=progress,
    )


@pytest.mark.usefixtures("slow")
def test_what_was_sealed_for_this_question_a_moment_ago_is_given(attacked: Attacked) -> None:
    """However long the verification took: its answer is young when it ends."""
    plant_sealed(attacked, *sealed_for(attacked)(timedelta(seconds=-2)), "-1 s")
    answer = attacked.ask()
    assert (answer.status_code, answer.json["status"]) == (200, "intact")
    assert answer.json["verified_at"] == "2026-01-31T12:00:00.123456Z"
    attacked.job("?full=1")


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("distance", [-61, -86_400, 3600, 86_400])
@pytest.mark.parametrize("finished", ["-1 s", "1 day"])
def test_a_seal_says_itself_when_it_was_made(
    attacked: Attacked, distance: int, finished: str
) -> None:
    sealed = sealed_for(attacked)(timedelta(seconds=distance))
    plant_sealed(attacked, *sealed, finished)
    attacked.job()


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(
    "other",
    [
        {"tenant_id": UUID(int=7)},
        {"job_id": UUID(int=7)},
        {"question": '{"full":"1"}'},
        {"master_keys": MasterKeys.parse(MasterKeys.generate())},
    ],
)
def test_a_seal_is_of_this_tenant_job_and_question_under_our_keys(
    attacked: Attacked, other: dict[str, Any]
) -> None:
    _, progress = sealed_for(attacked, **other)(timedelta(0))
    plant_sealed(attacked, uuid4(), progress, "0 s")
    attacked.job()


@pytest.mark.usefixtures("slow")
def test_what_a_job_sealed_is_of_no_use_in_another_s_row(attacked: Attacked) -> None:
    attacked.work(attacked.job("?full=1"))
    assert attacked.ask("?full=1").status_code == 200
    attacked.break_chain()
    attacked.sql("UPDATE jobs SET args = '{}', dedupe_key = '{}' WHERE tenant_id = :tenant")
    attacked.work(attacked.job())
    refused(attacked.ask(), 409, "audit-chain-broken")


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(
    "progress",
    ["[1]", "null", "{", "[" * 100_000, '{"sealed":1}', '{"sealed":"AA=="}', '{"sealed":"ä"}'],
)
def test_whatever_else_lies_there_answers_nothing(attacked: Attacked, progress: str) -> None:
    plant_sealed(attacked, uuid4(), progress, "-1 s")
    attacked.job()


@pytest.mark.usefixtures("slow")
def test_a_job_shows_nothing_that_could_be_taken_for_its_answer(attacked: Attacked) -> None:
    place = attacked.job()
    attacked.work(place)
    assert attacked.api.get(place).json["progress"] is None
    attacked.sql(
        "UPDATE jobs SET progress = :progress WHERE tenant_id = :tenant",
        progress=json.dumps({"status": "intact"}),
    )
    assert attacked.api.get(place).json["progress"] is None
    (listed,) = attacked.api.get("/v1/jobs").json["data"]
    assert listed["progress"] is None
