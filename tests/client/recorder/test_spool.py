"""What was appended survives kill -9, forks, a full disk and lost answers, and arrives once."""

import json
import os
import random
import sqlite3
import stat
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from record_service.recorder import spool as spools

from app.database import Database
from dev.stack import ROOT
from tests.client.recorder.between import Between
from tests.client.recorder.conftest import Arrived, MakeRecorder, steps_of
from tests.support.callers.api import FreshTenant, Mint
from tests.support.faults import until
from tests.support.servers.receivers import served

AGENT = Path(__file__).with_name("agent.py")
StartAgent = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def relay(base_url: str) -> Iterator[Between]:
    """Return what stands before the service."""
    with served(Between(base_url)) as it:
        yield it


@pytest.fixture
def agent(relay: Between, tenant: FreshTenant, spool: Path) -> Iterator[StartAgent]:
    """Return a starter of agents in processes of their own."""
    started: list[subprocess.Popen[str]] = []

    def start(**job: Any) -> "subprocess.Popen[str]":
        told = {
            "agent": "refund-desk",
            "base_url": relay.url,
            "key": tenant.root_key,
            "spool": str(spool),
            **job.pop("recorder", {}),
        }
        started.append(
            subprocess.Popen(
                [sys.executable, str(AGENT), json.dumps({"recorder": told, "runs": 0, **job})],
                env={**os.environ, "PYTHONPATH": str(ROOT / "client")},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.communicate()


def ledger(process: "subprocess.Popen[str]", code: int = 0) -> list[str]:
    """Return the lines that an agent wrote until it ended."""
    out, _ = process.communicate()
    assert process.returncode == code, out
    return out.splitlines()


def titles(arrived: Arrived) -> list[str]:
    """Return the titles of all records, each once."""
    found = Counter(each["title"] for each in arrived.records())
    assert max(found.values(), default=1) == 1, found
    return sorted(found)


def test_what_a_killed_process_left_arrives_with_its_steps(
    agent: StartAgent, relay: Between, recorder: MakeRecorder, arrived: Arrived
) -> None:
    relay.is_away = True
    said = ledger(agent(runs=3, dies=True), -9)
    assert said == ["run-0", "run-1", "run-2"]
    assert arrived.records() == []
    relay.is_away = False
    heir = recorder(base_url=relay.url)
    assert heir.flush(60)
    assert titles(arrived) == ["left", *said]
    (left,) = (each for each in arrived.records() if each["title"] == "left")
    assert left["labels"]["incomplete"] == "true"
    assert steps_of(left)["done"]["status"] == "ok"
    died_in = steps_of(left)["died in it"]
    assert (died_in["inputs"], died_in["status"], "ended_at" in died_in) == (
        {"order": 4711},
        "unset",
        False,
    )
    assert len(arrived.list("/v1/findings", rule="tenth")) == 1


def test_processes_share_a_spool_and_a_fork_begins_anew(
    agent: StartAgent, arrived: Arrived
) -> None:
    started = [agent(name=f"p{n}", runs=20, **({} if n else {"children": 2})) for n in range(3)]
    said = [line for each in started for line in ledger(each) if not line.startswith("{")]
    assert len(said) == 3 * 20 + 2 * 10 + 1
    found = arrived.records()
    supplements = [each for each in found if "supplement_of" in each["labels"]]
    records = [each for each in found if each not in supplements]
    assert Counter(each["title"] for each in records) == Counter(said)
    assert all("incomplete" not in each["labels"] for each in found)
    # What children did within their parent's record.
    (parent,) = (each for each in records if each["title"] == "parent")
    assert len(supplements) == 2
    for number, each in enumerate(sorted(supplements, key=lambda each: str(each["steps"]))):
        assert each["labels"]["supplement_of"] == parent["labels"]["trace_id"]
        steps = {name for one in supplements for name in steps_of(one)}
        assert f"in child {number}" in steps
        assert steps_of(each)["below"]["status"] == "ok"


@pytest.mark.parametrize("loses", ["/v1/records/batch", "/v1/findings/batch", "/complete"])
def test_an_answer_that_is_lost_makes_no_double(
    relay: Between, recorder: MakeRecorder, arrived: Arrived, loses: str
) -> None:
    lost: list[str] = []

    def once(_: str, path: str) -> bool:
        if not path.endswith(loses) or lost:
            return False
        lost.append(path)
        return True

    relay.loses = once
    it = recorder(base_url=relay.url)
    with it.session() as session, session.record("run", "one") as record:
        record.finding("r", severity="low", title="one")
    assert it.flush(60)
    assert len(lost) == 1
    assert titles(arrived) == ["one"]
    assert len(arrived.list("/v1/findings")) == 1
    assert arrived.list("/v1/sessions")[0]["outcome"] == "succeeded"


def _forget_answers(database: Database, tenant: FreshTenant, spool: Path) -> None:
    """Let two days pass: for the service's idempotency keys, and for the spool."""
    with database.transaction(tenant.id) as session:
        session.connection().exec_driver_sql(
            "UPDATE idempotency_keys SET created_at = created_at - interval '2 days'"
        )
    for path in spool.rglob("*.sqlite"):
        with sqlite3.connect(path) as file:
            file.execute("UPDATE entries SET at = at - 172800")
        file.close()


@pytest.mark.parametrize("heir", ["the same key, days later", "another key of the tenant"])
def test_what_arrived_unanswered_is_found_before_it_is_sent_again(
    agent: StartAgent,
    relay: Between,
    recorder: MakeRecorder,
    arrived: Arrived,
    database: Database,
    tenant: FreshTenant,
    spool: Path,
    mint: Mint,
    heir: str,
) -> None:
    # Sent and stored, but the answer never came; then the process died.
    relay.loses = lambda _, path: path.endswith("/batch")
    first = agent(runs=11, asks=True)
    until(lambda: any(path.endswith("/batch") for _, path in relay.asked))
    until(lambda: len(arrived.records()) > 0)
    first.kill()
    first.communicate()
    stored = titles(arrived)
    assert stored
    relay.loses = lambda *_: False
    options: dict[str, Any] = {"base_url": relay.url}
    if heir.startswith("another"):
        options["key"] = mint("write")
    else:
        _forget_answers(database, tenant, spool)
    it = recorder(**options)
    with it.session("chat") as session, session.record("run", "the heir's"):
        pass
    assert it.flush(60)
    assert titles(arrived) == sorted([*(f"run-{n}" for n in range(11)), "the heir's"])
    assert len(arrived.list("/v1/findings", rule="tenth")) == 2


def test_another_tenant_s_spool_is_left_alone(
    agent: StartAgent,
    relay: Between,
    recorder: MakeRecorder,
    arrived: Arrived,
    other_tenant: FreshTenant,
) -> None:
    relay.loses = lambda _, path: path.endswith("/batch")
    first = agent(runs=1, wait=0.1)
    first.communicate()
    relay.loses = lambda *_: False
    before = titles(arrived)
    other = recorder(base_url=relay.url, key=other_tenant.root_key)
    with other.session("chat") as session, session.record("run", "other"):
        pass
    assert other.flush(60)
    assert titles(arrived) == before


def test_a_bad_key_is_waited_for_and_a_bad_record_holds_up_nothing(
    recorder: MakeRecorder, arrived: Arrived, tenant: FreshTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_API_KEY", "svc_wrong")
    first = recorder(key=None)
    with first.session("chat") as session, session.record("run", "kept"):
        pass
    assert not first.flush(0.5)
    assert (first.stats()["pending"], first.stats()["dead"]) == (1, 0)
    until(lambda: "401" in str(first.stats()["error"]) or "key" in str(first.stats()["error"]))
    first.close(0.1)
    monkeypatch.setenv("SERVICE_API_KEY", tenant.root_key)
    mended = recorder(key=None)
    bad = mended.session("bad\0name")
    bad.named["external_id"] = "bad\0name"
    with bad, bad.record("run", "bad"):
        pass
    with mended.session("chat") as session, session.record("run", "good"):
        pass
    assert mended.flush(60)
    assert titles(arrived) == ["good", "kept"]
    assert (mended.stats()["dead"], mended.stats()["dead_letters"]) == (1, 1)
    (letter,) = spools.dead_letters(Path(mended.stats()["spool"]))
    assert letter["status"] == 422
    assert json.loads(letter["body"])["title"] == "bad"


def test_a_full_disk_drops_visibly_and_recovers(
    agent: StartAgent, relay: Between, arrived: Arrived
) -> None:
    relay.is_away = True
    # No file may grow beyond a megabyte: SQLite meets a full disk, in the file and its journal.
    first = agent(runs=120, size=20_000, file_limit=1024 * 1024, asks=True)
    assert first.stdout is not None
    before = [first.stdout.readline().strip() for _ in range(120)]
    relay.is_away = False
    out, _ = first.communicate("\n")
    assert first.returncode == 0
    *said, counts = out.splitlines()
    stats = json.loads(counts)
    assert stats["dropped"] > 0
    assert (stats["closed"], stats["pending"], stats["owed"]) == (True, 0, 0)
    assert stats["disk_error"]
    found = arrived.records()
    assert len(titles(arrived)) == 130
    kept = [line for line in before if not line.startswith("dropped")]
    assert 0 < len(kept) < 120
    assert said == [f"run-{n}" for n in range(120, 130)]
    # What is missing is counted, on the record too.
    short = [each for each in found if len(each["steps"]) < 2]
    assert short
    assert {each["labels"]["dropped"] for each in short} <= {"1", "2", "3"}
    whole = {each["title"]: each for each in found if "dropped" not in each["labels"]}
    assert whole.keys() >= {*kept, *said}
    assert all("outputs" in steps_of(each)["work"] for each in whole.values())


def test_a_damaged_file_is_kept_aside(
    recorder: MakeRecorder, arrived: Arrived, spool: Path
) -> None:
    first = recorder(base_url="http://127.0.0.1:9")
    first.close(0.1)
    (path,) = spool.rglob("*.sqlite")
    path.write_bytes(b"no database" * 1000)
    second = recorder(base_url="http://127.0.0.1:9")
    with second.session("chat") as session, session.record("run", "kept"):
        pass
    assert (second.stats()["corrupt_files"], second.stats()["pending"]) == (1, 1)
    assert len(list(spool.rglob("*.corrupt-*"))) == 1


def test_a_pinned_key_records_for_its_agent(
    recorder: MakeRecorder, arrived: Arrived, mint: Mint
) -> None:
    body = {"name": "Refunds", "external_id": "refund-desk"}
    agent = arrived.api.post("/v1/agents", body).json["id"]
    key = mint("write", pin={"agent_id": agent, "principal": "dana@example.com"})
    for name in ("refund-desk", agent, "another"):
        it = recorder(key=key, agent=name)
        with it.session(name) as session, session.record("run", name):
            pass
        assert it.flush(60)
        assert it.stats()["dead"] == (name == "another")
    assert titles(arrived) == sorted(["refund-desk", agent])


def test_its_size_is_bounded(recorder: MakeRecorder, base_url: str) -> None:
    it = recorder(base_url="http://127.0.0.1:9", strict=False, most_bytes=300_000)
    for number in range(100):
        with it.session("chat") as session, session.record("run", str(number)) as record:
            record.step("s", inputs="x" * 10_000).start().end()
    stats = it.stats()
    assert stats["dropped"] > 0
    assert stats["bytes"] <= 300_000


def test_a_mask_comes_before_the_disk(recorder: MakeRecorder, spool: Path) -> None:
    def hide(text: str) -> str:
        if "raise" in text:
            raise ValueError(text)
        return text.replace("4111", "****")

    it = recorder(base_url="http://127.0.0.1:9", mask=hide, strict=False)
    secret: Any = {"4111": ["4111", 4111, b"4111"], "x": "raise 4111"}
    with it.session("chat", title="4111", metadata=secret) as session:
        record = session.record("k 4111", "4111", labels={"n": "4111"}, content=secret).start()
        record.finding("4111", severity="low", title="4111", detail="4111", data=secret)
        record.approval("4111", "4111", "raise 4111")
        step = record.step("4111", inputs=secret, attributes=secret).start()
        step.outputs = secret
        step.event("4111", secret)
        step.end(LookupError("4111"))
        record.end(LookupError("raise 4111"))
        session.finding("4111", severity="low", title="4111")
        session.complete("failed", "4111")
    it.close(0.1)
    files = [path for path in spool.rglob("*") if path.is_file()]
    written = b"".join(path.read_bytes() for path in files)
    assert b"****" in written
    assert b"<masked: ValueError>" in written
    assert b"4111" not in written
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert stat.S_IMODE((spool / "spool").stat().st_mode) == 0o700


@pytest.mark.toolbox
def test_a_thousand_runs_through_outages_kills_and_a_full_disk_are_there_once(
    agent: StartAgent, relay: Between, recorder: MakeRecorder, arrived: Arrived
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance, over = random.Random(seed), threading.Event()

    def misfortune() -> None:
        """Let the service be away, and die behind a commit, time and again."""
        while not over.wait(chance.uniform(0.1, 1.0)):
            relay.is_away = chance.random() < 0.4
            relay.loses = lambda *_: chance.random() < 0.1
            if relay.is_away and over.wait(chance.uniform(0.0, 8.0)):
                return

    troubles = threading.Thread(target=misfortune)
    troubles.start()
    said: list[str] = []
    try:
        for life in range(11):
            job: dict[str, Any] = {"name": f"life{life}", "runs": 100, "size": 2000}
            if life == 5:
                job |= {"size": 20_000, "file_limit": 1024 * 1024}
            process = agent(**job)
            assert process.stdout is not None
            # Ten are killed, wherever they are then.
            dies_after = 100 if life == 10 else chance.randrange(85, 100)
            lines = [process.stdout.readline().strip() for _ in range(dies_after)]
            process.kill()
            lines += process.communicate()[0].splitlines()
            said += [line for line in lines if line.startswith("life")]
    finally:
        over.set()
        troubles.join()
    relay.is_away, relay.loses = False, lambda *_: False
    heir = recorder(base_url=relay.url)
    with heir.session("chat") as session, session.record("run", "the heir's"):
        pass
    assert heir.flush(120)
    found = arrived.records()
    counts = Counter(each["title"] for each in found)
    assert max(counts.values()) == 1
    assert set(said) <= set(counts)
    assert len(said) > 850
    whole = {each["title"] for each in found if "incomplete" not in each["labels"]}
    assert set(said) <= whole
    assert len([each for each in found if "incomplete" in each["labels"]]) <= 11
    tenths = Counter(row["title"] for row in arrived.all("/v1/findings", rule="tenth"))
    assert max(tenths.values()) == 1
    assert {title for title in said if title.endswith("0")} <= set(tenths)
