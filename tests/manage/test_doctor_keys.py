"""The doctor on keys, certificates and the log: each finding, brought about by its fault."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from app.core import signing_keys
from app.core.log.head.head_store import FileHead
from app.core.log.sequencer import Sequencer
from app.core.signing_keys import Purpose
from app.database import Database
from app.ledger.checkpoints import Checkpoint
from app.lib.crypto.sealing import MasterKeys
from app.lib.crypto.timestamps import read_certificates
from app.manage.doctor.findings import Level
from tests.support.database.doctoring import Installation
from tests.support.evidence.logs import FLIP, add_leaves
from tests.support.secrets import MASTER_KEYS, MASTER_KEYS_SETTING
from tests.support.servers.certificates import BEGIN, END, ROOT, issue, private_key


@pytest.fixture
def keyed(here: Installation, database_here: Database, tenant_id: UUID) -> Installation:
    """Return the installation with a tenant and a key that signs bundles."""
    with database_here.across_tenants() as session:
        signing_keys.current(session, MASTER_KEYS, Purpose.BUNDLE)
    return here


def sentences(here: Installation, name: str, level: Level = Level.FAILED) -> str:
    """Return all that a check finds of one level."""
    return "\n".join(each.sentence for each in here.found(name)[name] if each.level is level)


def test_keys_that_open_everything_are_well(keyed: Installation) -> None:
    assert keyed.levels("keys") == {Level.OK}
    assert "MASTER_KEYS has the key of each of" in sentences(keyed, "keys", Level.OK)


def test_another_master_key_is_told_with_all_that_does_not_open(keyed: Installation) -> None:
    keyed.change(master_keys=MasterKeys.parse(MasterKeys.generate()))
    said = sentences(keyed, "keys")
    assert "does not open under MASTER_KEYS" in said
    assert f"seals are under the master key {MASTER_KEYS.ids[0]}, which MASTER_KEYS lacks" in said


def test_a_master_key_that_a_process_announced_is_missed(keyed: Installation) -> None:
    keyed.run("INSERT INTO master_keys (key_id) VALUES ('0badc0de')")
    assert "MASTER_KEYS lacks 0badc0de" in keyed.failing("keys")


def test_what_is_not_sealed_is_told(keyed: Installation) -> None:
    keyed.run("UPDATE tenants SET chain_seal = 'plainly wrong, and long enough to be a seal'")
    assert "1 values that should be sealed are not" in keyed.failing("keys")


def later(here: Installation, days: float) -> None:
    """Let the doctor's clock be at so many days before the end of the tests' certificates."""
    here.clock = (END - timedelta(days=days)).timestamp


@pytest.mark.parametrize(
    ("days", "level"), [(31, Level.OK), (29, Level.WARNING), (-1, Level.FAILED)]
)
def test_the_root_of_the_timestamp_authority_is_told_before_it_ends(
    here: Installation, days: float, level: Level
) -> None:
    root = issue("Authority", private_key(), None, ROOT)
    here.change(tsa_ca_file=read_certificates(root.public_bytes(Encoding.PEM)))
    later(here, days)
    (said,) = [each for each in here.found("keys")["keys"] if "TSA_CA_FILE" in each.sentence]
    assert said.level is level
    assert f"{END:%Y-%m-%d}" in said.sentence


def test_an_old_root_beside_the_new_one_is_well(here: Installation) -> None:
    old = issue("Old", private_key(), None, ROOT, end=BEGIN + timedelta(days=1))
    new = issue("New", private_key(), None, ROOT)
    pem = old.public_bytes(Encoding.PEM) + new.public_bytes(Encoding.PEM)
    here.change(tsa_ca_file=read_certificates(pem))
    assert here.levels("keys") == {Level.OK}


def test_an_authority_of_receivers_that_ended_is_named(here: Installation) -> None:
    old = issue("Old", private_key(), None, ROOT, end=BEGIN + timedelta(days=1))
    new = issue("New", private_key(), None, ROOT)
    both = (old.public_bytes(Encoding.PEM) + new.public_bytes(Encoding.PEM)).decode()
    here.change(webhook_ca_file=both)
    assert "WEBHOOK_CA_FILE: CN=Old is valid until 2020-01-02" in here.warned("keys")
    here.change(webhook_ca_file=old.public_bytes(Encoding.PEM).decode())
    assert "CN=Old" in here.failing("keys")


class Log:
    """The installation's log, with a head outside."""

    def __init__(self, here: Installation, database: Database, folder: Path) -> None:
        self.here = here
        self.database = database
        self.head = folder / "head"
        here.change(log_head_url=self.head.as_uri())

    def grow(self) -> None:
        """Publish three more leaves."""
        add_leaves(self.database, 3)
        store = FileHead(self.head)
        Sequencer(self.database, MASTER_KEYS, "records.test/log", store).run()


@pytest.fixture
def log(here: Installation, database_here: Database, tmp_path: Path) -> Log:
    """Return a log of three leaves."""
    made = Log(here, database_here, tmp_path)
    made.grow()
    return made


def test_a_log_in_order_is_told_with_its_size(log: Log) -> None:
    assert log.here.levels("log") == {Level.OK}
    assert "3 leaves are published" in sentences(log.here, "log", Level.OK)


def test_a_log_that_has_not_begun_is_well(here: Installation) -> None:
    assert "has not begun" in sentences(here, "log", Level.OK)
    assert here.levels("log") == {Level.OK}


def test_a_head_before_the_database_is_told_as_a_rollback(log: Log) -> None:
    store = FileHead(log.head)
    head = store.read()
    assert head is not None
    newer = replace(Checkpoint.parse(head.decode()), size=9, root=bytes(32))
    assert store.swap(head, newer.text.encode())
    said = log.here.failing("log")
    assert "log-rolled-back: Size 9" in said
    assert "log succeed --yes" in said


def test_a_lost_head_and_one_out_of_reach_are_told(log: Log) -> None:
    log.head.unlink()
    assert "log-head-lost" in log.here.failing("log")
    log.here.change(log_head_url=(log.head.parent / "nowhere" / "head").as_uri())
    said = log.here.failing("log")
    assert "log-head-unavailable" in said
    assert "No such file or directory" in said


def test_a_damaged_tile_is_told_with_the_command(log: Log) -> None:
    log.here.run(FLIP)
    said = log.here.failing("log")
    assert "log-damaged" in said
    assert "python -m app.manage log rebuild" in said


def test_what_halted_the_log_is_told(log: Log) -> None:
    log.here.run("UPDATE log_generations SET trouble = 'log-rolled-back'")
    assert "log-rolled-back" in log.here.failing("log")


def test_a_broken_chain_is_told(here: Installation) -> None:
    here.run(
        "INSERT INTO audit_breaks (tenant_id, subject, seq, reason, expected, found)"
        " VALUES (gen_random_uuid(), '', 1, 'hash', 'one', 'another')"
    )
    assert "audit chains: 1 broken" in here.failing("log")


def test_the_master_key_itself_is_never_told(keyed: Installation) -> None:
    found = keyed.found("keys")["keys"]
    assert all(MASTER_KEYS_SETTING not in each.sentence for each in found)
