"""Damage of the stored log: what each way to ask answers.

The database is damaged by statements of its owner. Nothing damaged is served, no damage is called a
rollback, and what can be mended is mended and never ended.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

import pytest
from flask import Flask
from sqlalchemy import Engine, text

from app.api.http.services import EXTENSION
from app.core import tenants
from app.errors import LogHalted
from app.ledger.notes import Checkpoint
from app.manage import commands
from app.settings import Settings
from tests.support.callers.api import Answer, Api, application
from tests.support.callers.making import make_record, make_session
from tests.support.evidence.logs import FLIP, World, add_leaves, new_world
from tests.support.secrets import MASTER_KEYS

BEFORE, SIZE = 599, 600

# Each damage, and what the owner does. Leaf 300 is in tile/0/001.
DAMAGES = {
    "a bit of a tile of level 0": [f"{FLIP} WHERE level = 0 AND number = 1"],
    "a bit of a tile of level 1": [f"{FLIP} WHERE level = 1"],
    "a bit of an entry bundle": [f"{FLIP} WHERE level = -1 AND number = 1"],
    "a bit of a leaf's row": [f"{FLIP.replace('log_tiles', 'log_leaves')} WHERE leaf_index >= 300"],
    "a tile is gone": ["DELETE FROM log_tiles WHERE level = 0 AND number = 1"],
    "an entry bundle is gone": ["DELETE FROM log_tiles WHERE level = -1 AND number = 1"],
    "a leaf's row is gone": ["DELETE FROM log_leaves WHERE leaf_index IN (300, 599)"],
    "the newest checkpoint's row is gone": [f"DELETE FROM checkpoints WHERE size = {SIZE}"],
    "the root in the newest checkpoint's row": [
        f"UPDATE checkpoints SET root = sha256('other') WHERE size = {SIZE}"
    ],
    "the note of the newest checkpoint": [
        """UPDATE checkpoints SET note = set_byte(note, length(note) - 9,
           CASE get_byte(note, length(note) - 9) WHEN 65 THEN 66 ELSE 65 END) WHERE size = 600"""
    ],
    "a leaf is lost, row and bundle": [
        "DELETE FROM log_leaves WHERE leaf_index = 300",
        "DELETE FROM log_tiles WHERE level = -1 AND number = 1",
    ],
    "an older dump was restored": [],
    "the head outside is ahead": [],
}


@dataclass
class Site:
    """A service with a published log of 600 leaves, the last of which is a record's."""

    world: World
    owner: Engine
    head: Path
    api: Api
    anyone: Api
    record: str
    tenant_id: UUID
    capsys: pytest.CaptureFixture[str]

    def execute(self, *statements: str) -> None:
        """Do what the database's owner may do."""
        with self.owner.begin() as connection:
            for statement in statements:
                assert connection.execute(text(statement)).rowcount != 0

    def damage(self, name: str) -> None:
        """Damage the database, or the head, as one row of the table says."""
        self.execute(*DAMAGES[name])
        if name == "an older dump was restored":
            self.execute(
                "TRUNCATE records CASCADE",
                f"DELETE FROM checkpoints WHERE size = {SIZE}",
                f"DELETE FROM log_leaves WHERE leaf_index >= {BEFORE}",
                "UPDATE log_tiles SET data = substr(data, 1, 87 * 32)"
                " WHERE level = 0 AND number = 2",
                "UPDATE log_tiles SET data = substr(data, 1, length(data) / 88 * 87)"
                " WHERE level = -1 AND number = 2",
            )
        if name == "the head outside is ahead":
            ahead = Checkpoint(self.world.published().checkpoint.origin, 700, bytes(32))
            self.head.write_text(ahead.text)

    def command(self, *arguments: str) -> tuple[int, str]:
        """Run `python -m app.manage log …`; return its exit status and all that was said."""
        status = commands.main(["log", *arguments])
        said = self.capsys.readouterr()
        return status, said.out + said.err

    def tick(self) -> None:
        """Have the log looked after, as a worker that has just started does."""
        with suppress(LogHalted):
            self.world.sequencer().tick(float("inf"))

    def files(self) -> dict[str, bytes]:
        """Return what the log serves for ever."""
        paths = ("0/000", "0/001", "1/000.p/2", "entries/000", "entries/001")
        return {path: self.anyone.get(f"/v1/log/tile/{path}").data for path in paths}

    def answers(self) -> dict[str, str]:
        """Ask in every way that the table has a column for."""
        read = {
            "checkpoint": "/v1/log/checkpoint",
            "tile": "/v1/log/tile/0/001",
            "entries": "/v1/log/tile/entries/001",
            "proof": "/v1/log/proof/inclusion?index=300",
        }
        seen = {name: said(self.anyone.get(path)) for name, path in read.items()}
        seen["log-proof"] = said(self.api.get(f"/v1/records/{self.record}/log-proof"))
        self.tick()
        seen["parts.log"] = self.part("log")
        seen["verify"] = said(self.api.get("/v1/audit/verify"))
        seen["log status"] = self.status()
        seen["rebuild --check"] = str(self.command("rebuild", "--check")[0])
        status, words = self.command("succeed", "--yes")
        if status == 0:
            seen["succeed --yes"] = "a successor"
        else:
            seen["succeed --yes"] = "refused, mend" if "log rebuild" in words else "refused"
        return seen

    def part(self, name: str) -> str:
        """Return the state of a part of /readyz."""
        ready = self.anyone.readyz()
        assert ready.status_code == 200
        assert (ready.json["parts"]["log"] == "up") is ("log" not in ready.json["degraded"])
        return str(ready.json["parts"][name])

    def status(self) -> str:
        """Return what `log status` says is wrong, or that nothing is."""
        words = self.command("status")[1]
        found = re.search(r"^(?:head|tree|found): (log-[a-z-]+)", words, re.MULTILINE)
        assert found or "head: in order" in words
        return found[1] if found else "in order"


def said(answer: Answer) -> str:
    """Return an answer's status and kind of problem; one that refuses is never to be cached."""
    if answer.status_code == 200:
        return "200"
    assert "immutable" not in answer.headers.get("Cache-Control", "")
    slug = answer.json["type"].rpartition("/")[2]
    if slug == "log-damaged":
        assert "no-store" in answer.headers["Cache-Control"]
    return f"{answer.status_code} {slug}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where the head is kept."""
    return tmp_path_factory.mktemp("damage")


@pytest.fixture(scope="module")
def log_app(log_settings: Settings, folder: Path) -> Iterator[Flask]:
    """Return the web application over the database of these tests."""
    with application(replace(log_settings, log_head_url=(folder / "head").as_uri())) as opened:
        yield opened


@pytest.fixture
def site(
    log_app: Flask,
    log_settings: Settings,
    log_owner: Engine,
    folder: Path,
    environ: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Site]:
    """Return a service with a log of 600 leaves, two checkpoints and a head outside."""
    head = folder / "head"
    for left in folder.glob("head*"):
        left.unlink()
    own = {"DATABASE_URL": log_settings.database_url, "LOG_HEAD_URL": head.as_uri()}
    for name, value in (environ | own).items():
        monkeypatch.setenv(name, value)
    # A process notes damage now and then: here as if each test were the first to meet it.
    log_app.extensions[EXTENSION].damage.succeeded()
    with new_world(log_settings, log_owner, folder) as world:
        tenant_id, key = tenants.create(world.database, MASTER_KEYS, "the test's tenant")
        api, anyone = Api(log_app.test_client(), key), Api(log_app.test_client(), None)
        session = make_session(api)["id"]
        add_leaves(world.database, BEFORE)
        world.sequencer().run()
        record = make_record(api, session)["id"]
        world.sequencer().run()
        world.check_consistency()
        assert world.published().checkpoint.size == SIZE
        yield Site(world, log_owner, head, api, anyone, record, tenant_id, capsys)


# Leaf 300 of 600 is damaged: `proof` is that leaf's inclusion proof, `log-proof` a record's in
# the last leaf, which reads its own row of `log_leaves`. What mends it stands last.
TABLE = """\
damage                               | checkpoint tile entries proof log-proof | part verify status
a bit of a tile of level 0              | . D D D . | D D D | log rebuild
a bit of a tile of level 1              | . D D . D | D D D | log rebuild
a bit of an entry bundle                | . . D . . | D D D | log rebuild
a bit of a leaf's row                   | . . . . D | D . . | log rebuild
a tile is gone                          | . D D D . | D D D | log rebuild
an entry bundle is gone                 | . . D . . | D D D | log rebuild
a leaf's row is gone                    | . . . . D | D . . | log rebuild
the newest checkpoint's row is gone     | . . . . P | D D D | log rebuild
the root in the newest checkpoint's row | D D D D D | D D D | log rebuild
the note of the newest checkpoint       | D D D D D | D D D | log rebuild
a leaf is lost, row and bundle          | . . D . . | D D D | a backup
an older dump was restored              | . . . . N | R R R | the newest database, or log succeed
the head outside is ahead               | . . . . . | R R R | the newest database, or log succeed
"""
HTTP = {
    ".": "200",
    "D": "409 log-damaged",
    "R": "409 log-rolled-back",
    "P": "409 log-pending",
    "N": "404 not-found",
}
SLUGS = {".": "in order", "D": "log-damaged", "R": "log-rolled-back"}
ENDS = {"log rebuild": "refused, mend", "a backup": "refused"}


def table() -> dict[str, tuple[dict[str, str], str]]:
    """Return for each damage what is answered, and what mends it."""
    found = {}
    _, *lines = TABLE.splitlines()
    for line in lines:
        name, served, said, mends = (each.strip() for each in line.split("|"))
        part, verify, status = said.split()
        answers = dict(
            zip(
                ("checkpoint", "tile", "entries", "proof", "log-proof"),
                (HTTP[each] for each in served.split()),
                strict=True,
            )
        )
        answers |= {"parts.log": SLUGS[part], "verify": HTTP[verify], "log status": SLUGS[status]}
        answers |= {"rebuild --check": "1", "succeed --yes": ENDS.get(mends, "a successor")}
        found[name] = (answers, mends)
    return found


@pytest.mark.parametrize("name", DAMAGES)
def test_each_damage_is_answered_as_the_table_says(site: Site, name: str) -> None:
    head = site.head.read_bytes()
    files = site.files()
    site.damage(name)
    damaged_head = site.head.read_bytes()
    seen = site.answers()
    expected, mends = table()[name]
    assert seen == expected
    assert (seen["succeed --yes"] == "refused, mend") == (mends == "log rebuild")
    if seen["succeed --yes"] == "a successor":
        check_successor(site)
    if mends != "log rebuild":
        return
    status, words = site.command("succeed")
    assert status == 1
    assert "log rebuild" in words
    status, words = site.command("succeed", "--yes", "--force")
    assert status == 1
    assert "log rebuild" in words
    assert site.head.read_bytes() == damaged_head == head
    status, _ = site.command("rebuild")
    assert status == 0
    assert site.command("rebuild", "--check")[0] == 0
    site.tick()
    assert site.files() == files
    assert site.api.get(f"/v1/records/{site.record}/log-proof").status_code == 200
    assert site.api.get("/v1/audit/verify").json["status"] == "intact"
    assert (site.part("log"), site.part("audit")) == ("up", "up")
    assert site.status() == "in order"
    add_leaves(site.world.database, 300)
    site.world.sequencer().run()
    site.world.prove()


def check_successor(site: Site) -> None:
    """Hold /readyz after `log succeed` to what docs/operations.md says of it."""
    assert site.part("log") == "up"
    assert site.part("audit").startswith("not verified: Size ")
    assert site.api.get("/v1/audit/verify").json["status"] == "intact"
    assert site.anyone.readyz().json["parts"]["audit"] == "up"
    assert site.command("rebuild", "--check")[0] == 0


def test_every_damage_is_in_the_table() -> None:
    assert list(table()) == list(DAMAGES)
