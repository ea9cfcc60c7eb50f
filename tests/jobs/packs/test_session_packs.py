"""The pack of a whole session: built by a job, verified whole, and what was tampered with named."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from app.core.packs import session_packs, session_store
from app.core.statements import sealing, statements
from tests.jobs.packs.test_sealed_sessions import seal
from tests.support.callers.making import (
    make_finding,
    make_session,
    record_of,
    refused,
    uuid_of,
)
from tests.support.evidence.packing import AT_ONCE, Packer, execute, files_in
from tests.support.evidence.verifying import Answer, answer


class Sealed:
    """A sealed session with its records, and its pack."""

    def __init__(self, packer: Packer, count: int) -> None:
        self.packer = packer
        self.session = make_session(packer.api())
        self.path = f"/v1/sessions/{self.session['id']}/evidence.zip"
        self.records: list[dict[str, Any]] = []
        for begin in range(0, count, 1000):
            body = {
                "records": [
                    record_of(self.session["id"], title=f"act {number}")
                    for number in range(begin, min(count, begin + 1000))
                ]
            }
            self.records += packer.api().post("/v1/records/batch", body).json["data"]
        make_finding(packer.api(), self.session["id"])
        seal(packer, self.session)
        packer.log.run()

    def built(self) -> bytes:
        """Return the pack, as it is answered once it was built."""
        ask = self.packer.api().get
        if ask(self.path, headers=AT_ONCE).status_code == 202:
            self.packer.work("session_pack")
        found = ask(self.path, headers=AT_ONCE)
        assert found.status_code == 200, found.json
        return bytes(found.data)

    def checked(self, folder: Path) -> Answer:
        (folder / "pack.zip").write_bytes(self.built())
        return answer(folder / "pack.zip")


@pytest.fixture
def sealed(packer: Packer) -> Callable[[int], Sealed]:
    return lambda count: Sealed(packer, count)


def test_a_session_s_pack_verifies_whole(
    sealed: Callable[[int], Sealed], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (sealing, statements):
        monkeypatch.setattr(module, "PART", 4)
    for module in (session_packs, session_store):
        monkeypatch.setattr(module, "PART_BYTES", 1500)
    made = sealed(10)
    pending = made.packer.api().get(made.path, headers=AT_ONCE)
    assert (pending.status_code, pending.headers["Preference-Applied"]) == (202, "wait=0")
    assert pending.headers["Location"].endswith(made.path)
    found = made.checked(tmp_path)
    assert found.code == 0, found.text
    assert "VALID        bundles.ndjson: 10 of 10 are here" in found.text
    data = made.built()
    files = files_in(data)
    digests = [each["bundle"]["sha256"] for each in made.records]
    assert files["session-digests.txt"].decode().split() == digests
    lines = files["bundles.ndjson"].splitlines()
    assert [json.loads(each)["record"]["title"] for each in lines] == [
        f"act {number}" for number in range(10)
    ]
    for start in (0, 1499, 5000, len(data) - 7):
        wanted = {"Range": f"bytes={start}-{start + 3000}"}
        part = made.packer.api().get(made.path, headers=wanted)
        assert part.status_code == 206
        assert part.data == data[start : start + 3001]


def test_an_open_session_has_no_pack(packer: Packer) -> None:
    session = make_session(packer.api())
    refused(packer.api().get(f"/v1/sessions/{session['id']}/evidence.zip"), 409, "session-open")


def test_a_session_without_records_has_a_pack(
    sealed: Callable[[int], Sealed], tmp_path: Path
) -> None:
    found = sealed(0).checked(tmp_path)
    assert found.code == 0, found.text


DELETE = ("DELETE FROM bundles WHERE record_id = :id", "DELETE FROM records WHERE id = :id")
INSERT = """
INSERT INTO records SELECT (r #>> '{}')::records FROM (SELECT 1) AS r
"""


def test_what_the_owner_of_the_database_took_or_changed_is_named(
    sealed: Callable[[int], Sealed], tmp_path: Path, admin_engine: Engine
) -> None:
    made = sealed(7)
    third = made.records[2]
    execute(admin_engine, DELETE[0], id=uuid_of(third["id"]))
    found = made.checked(tmp_path)
    assert (found.code, found.verdicts["records.ndjson"]) == (1, "INCOMPLETE"), found.text
    assert f"3 of 7 ({third['id']}, {third['bundle']['sha256']})" in found.text
    execute(admin_engine, DELETE[1], id=uuid_of(third["id"]))
    found = made.checked(tmp_path)
    assert (found.code, found.verdicts["records.ndjson"]) == (1, "INCOMPLETE"), found.text
    assert f"3 of 7 ({third['bundle']['sha256']})" in found.text
