"""The doctor on keys, certificates and the log: each finding, brought about by its fault."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from app.core import signing_keys
from app.core.health.parts import State
from app.core.log.head_store import FileHead
from app.core.log.sequencer import Sequencer
from app.core.signing_keys import Purpose
from app.database import Database
from app.evidence.timestamps import read_certificates
from app.ledger.notes import Checkpoint
from app.lib.crypto.sealing import MasterKeys
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


def test_keys_that_open_are_well_and_under_another_master_key_they_do_not(
    keyed: Installation,
) -> None:
    assert keyed.states("keys") == {State.OK}
    assert all(MASTER_KEYS_SETTING not in each.text for each in keyed.found("keys")["keys"])
    keyed.change(master_keys=MasterKeys.parse(MasterKeys.generate()))
    assert "does not open under MASTER_KEYS" in keyed.failing("keys")
    keyed.run("INSERT INTO master_keys (key_id) VALUES ('0badc0de')")
    assert "MASTER_KEYS lacks 0badc0de" in keyed.failing("master_keys")


def certificate(name: str, **ends: datetime) -> bytes:
    return issue(name, private_key(), None, ROOT, **ends).public_bytes(Encoding.PEM)


@pytest.mark.parametrize(
    ("days", "level"), [(31, State.OK), (29, State.WARNING), (-1, State.FAILED)]
)
def test_the_root_of_the_timestamp_authority_is_told_before_it_ends(
    here: Installation, days: float, level: State
) -> None:
    here.change(tsa_ca_file=read_certificates(certificate("Authority")))
    here.clock = (END - timedelta(days=days)).timestamp
    (said,) = [each for each in here.found("keys")["keys"] if "TSA_CA_FILE" in each.text]
    assert said.state is level
    assert f"{END:%Y-%m-%d}" in said.text


def test_an_old_root_beside_a_new_one_is_well_and_an_old_authority_of_receivers_is_named(
    here: Installation,
) -> None:
    old, new = certificate("Old", end=BEGIN + timedelta(days=1)), certificate("New")
    here.change(tsa_ca_file=read_certificates(old + new))
    assert here.states("keys") == {State.OK}
    here.change(webhook_ca_file=(old + new).decode())
    assert "WEBHOOK_CA_FILE: CN=Old is valid until 2020-01-02" in here.warned("keys")
    here.change(webhook_ca_file=old.decode())
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


def ahead(log: Log) -> None:
    """Another has published more."""
    store = FileHead(log.head)
    head = store.read()
    assert head is not None
    newer = replace(Checkpoint.parse(head.decode()), size=9, root=bytes(32))
    assert store.swap(head, newer.text.encode())


def out_of_reach(log: Log) -> None:
    log.here.change(log_head_url=(log.head.parent / "nowhere" / "head").as_uri())


@pytest.mark.parametrize(
    ("fault", "said", "mend"),
    [
        (ahead, "log-rolled-back: Size 9", "log succeed --yes"),
        (lambda log: log.head.unlink(), "log-head-lost", "log adopt --yes"),
        (out_of_reach, "log-head-unavailable", "read and write LOG_HEAD_URL"),
        (lambda log: log.here.run(FLIP), "log-damaged", "python -m app.manage log rebuild"),
        (
            lambda log: log.here.run("UPDATE log_generations SET trouble = 'log-rolled-back'"),
            "log-rolled-back: a worker found so",
            "log succeed --yes",
        ),
    ],
)
def test_what_keeps_the_log_from_signing_is_told_with_what_mends_it(
    log: Log, fault: Callable[[Log], None], said: str, mend: str
) -> None:
    fault(log)
    told = log.here.failing("log")
    assert said in told
    assert mend in told


def test_a_broken_chain_is_told(here: Installation) -> None:
    here.run(
        "INSERT INTO audit_breaks (tenant_id, subject, seq, reason, expected, found)"
        " VALUES (gen_random_uuid(), '', 1, 'hash', 'one', 'another')"
    )
    assert "1 broken" in here.failing("audit")


def test_a_retention_below_the_floor_is_named_and_not_raised(
    here: Installation, tenant_id: UUID
) -> None:
    here.run("UPDATE tenants SET bundle_retention_days = 30 WHERE id = :id", id=tenant_id)
    here.change(min_retention_days=30)
    assert here.states("retention") == {State.OK}
    here.change(min_retention_days=183)
    told = f"fewer than 183 days (MIN_RETENTION_DAYS) by ten_{tenant_id.hex} (30)"
    assert told in here.warned("retention")
