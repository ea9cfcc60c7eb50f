"""The anchors of an audit chain over HTTP."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text

from app.clock import rfc3339
from app.core.anchoring import incidents
from app.core.log.sequencer import Sequencer
from app.database import Database, database_now
from app.evidence.timestamps import read_certificates
from app.ledger.policy import Policy
from app.settings import Settings
from dev.tsa import TimestampAuthority
from tests.support.callers.api import Api, ApiOf, FreshTenant, serving
from tests.support.evidence.anchoring import anchor_heads, put_line, put_stamp
from tests.support.evidence.verifying import Answer
from tests.support.evidence.verifying import answer as answer_of
from tests.support.evidence.witnesses import Witness


@pytest.fixture
def anchor(database: Database, log: Sequencer) -> Callable[[], None]:
    """Return what anchors every head and publishes it."""

    def run() -> None:
        anchor_heads(database)
        log.run()

    return run


def listed(api: Api, query: str = "") -> dict[str, Any]:
    return api.found(f"/v1/audit/anchors{query}")


def switch(api: Api, *, on: bool) -> None:
    assert api.patch("/v1/tenant/settings", {"anchoring_enabled": on}).status_code == 200


def test_anchors_are_listed_newest_first_in_pages_each_with_its_proof(
    api: ApiOf, anchor: Callable[[], None]
) -> None:
    assert listed(api())["data"] == []
    for on in (False, True, False, True):
        anchor()
        switch(api(), on=on)
    anchor()
    found = listed(api())
    assert [each["seq"] for each in found["data"]] == [6, 4, 2]
    entry = api().get("/v1/audit?limit=1").json["data"][0]
    assert (entry["seq"], entry["hash"]) == (6, found["data"][0]["hash"])
    assert all(each["log_proof"]["checkpoint"] for each in found["data"])
    first = listed(api(), "?limit=2")
    second = listed(api(), f"?limit=2&cursor={first['next_cursor']}")
    assert first["data"] + second["data"] == found["data"]
    assert second["next_cursor"] is found["next_cursor"] is None


def test_a_pending_anchor_has_no_proof_yet(api: ApiOf, database: Database) -> None:
    anchor_heads(database)
    (found,) = listed(api())["data"]
    assert (found["log_proof"], found["vkey"], found["timestamp"]) == (None, None, None)
    assert found["cosignatures"] == []


def test_it_says_plainly_that_the_service_s_own_log_is_all_there_is(
    api: ApiOf, anchor: Callable[[], None], settings: Settings
) -> None:
    first = api().get("/v1/audit?order=asc&limit=1").json["data"][0]
    said = listed(api())["anchoring"]
    assert (said["enabled"], said["disabled_since"]) == (True, None)
    assert (said["anchored_by"], said["anchored_through"]) == ([], None)
    assert said["unanchored_since"] == first["at"]
    assert said["detail"] == f"No entry is anchored: unanchored since {first['at']}."
    anchor()
    said = listed(api())["anchoring"]
    assert (said["anchored_by"], said["anchored_through"]) == (["log"], 2)
    assert (said["unanchored_since"], said["troubles"]) == (None, [])
    assert "log alone" in said["detail"]
    assert "Set TSA_URL" in said["detail"]
    with serving(settings) as fresh:
        assert "log alone" in fresh().readyz().json["parts"]["anchored_by"]
    for on in (False, True, False):
        switch(api(), on=on)
    entry, _, first = api().get("/v1/audit?limit=3").json["data"]
    api().patch("/v1/tenant/settings", {"bundle_retention_days": 30})
    said = listed(api())["anchoring"]
    assert (said["enabled"], said["disabled_since"]) == (False, entry["at"])
    assert (said["anchored_through"], said["unanchored_since"]) == (2, first["at"])
    assert f"unanchored since {first['at']}" in said["detail"]
    assert said["detail"].startswith(f"Anchoring is switched off since {entry['at']}.")
    anchors = api().get("/v1/audit/verify?full=1").json["anchors"]
    assert (anchors["enabled"], anchors["disabled_since"]) == (False, entry["at"])
    switch(api(), on=True)
    assert listed(api())["anchoring"]["disabled_since"] is None


@dataclass
class Vouched:
    """A service that trusts a timestamp authority and a witness, neither of which answers."""

    api: Api
    authority: TimestampAuthority
    witness: Witness
    part: str

    def ready(self) -> str:
        return str(self.api.readyz().json["parts"]["anchored_by"])

    def said(self) -> dict[str, Any]:
        return dict(listed(self.api)["anchoring"])


@pytest.fixture
def vouched(
    tenant: FreshTenant, settings: Settings, admin_engine: Engine, tmp_path: Path
) -> Iterator[Vouched]:
    authority, witness = TimestampAuthority(tmp_path), Witness("one.test")
    policy = f"witness w {witness.vkey} http://127.0.0.1:1/\nquorum w\n"
    set_up = replace(
        settings,
        tsa_url="http://127.0.0.1:1/",
        tsa_ca_file=read_certificates(authority.ca_file.read_bytes()),
        witness_policy=Policy.parse(policy.encode()),
    )
    part = f"witness {witness.name}+{witness.vkey.key_hash.hex()}"
    with serving(set_up) as made:
        yield Vouched(made(tenant.root_key), authority, witness, part)
    with admin_engine.begin() as connection:
        for table in ("anchoring_troubles", "checkpoint_timestamps", "checkpoint_cosignatures"):
            connection.execute(text(f"DELETE FROM {table}"))


def test_troubles_of_anchoring_are_told_to_tenants_without_the_operator_s_details(
    vouched: Vouched, anchor: Callable[[], None], database: Database
) -> None:
    anchor()
    assert vouched.api.readyz().json["parts"]["anchoring"] == "up"
    with database.across_tenants() as session:
        since = database_now(session)
        incidents.begin(session, "timestamps", since, "It hangs at 10.0.0.7.")
        incidents.begin(session, vouched.part, since, "It cosigned another.", alarm=True)
    ready, at = vouched.api.readyz(), rfc3339(since)
    assert ready.status_code == 200, "requests are served all the same"
    assert "anchoring" in ready.json["degraded"]
    assert ready.json["parts"]["anchoring"] == (
        f"ALARM: {vouched.part}: unanchored since {at}: It cosigned another.; "
        f"timestamps: unanchored since {at}: It hangs at 10.0.0.7."
    )
    said = vouched.said()
    found = [(each["part"], each["since"], each["alarm"]) for each in said["troubles"]]
    assert found == [(vouched.part, at, True), ("timestamps", at, False)]
    assert said["troubles"][0]["detail"].startswith("ALARM: ")
    assert said["troubles"][1]["detail"] == f"unstamped since {at}"
    assert "10.0.0.7" not in json.dumps(said), "that is the operator's"


def test_anchored_by_is_computed_from_stored_evidence_and_not_from_settings(
    vouched: Vouched, anchor: Callable[[], None], admin_engine: Engine
) -> None:
    anchor()
    said = vouched.said()
    assert said["anchored_by"] == ["log"]
    for missing in ("No timestamp covers", "No quorum of witnesses covers"):
        assert missing in said["detail"]
        assert missing in vouched.ready()
    put_stamp(admin_engine, vouched.authority)
    assert vouched.said()["anchored_by"] == ["log", "timestamps"]
    assert "stamped by a timestamp authority (the first " in vouched.ready()
    assert "No quorum of witnesses covers" in vouched.ready()
    put_line(admin_engine, vouched.witness)
    said = vouched.said()
    assert said["anchored_by"] == ["log", "timestamps", "witnesses"]
    assert "covers" not in said["detail"]
    assert "cosigned by a quorum of witnesses (the first " in vouched.ready()
    switch(vouched.api, on=False)
    anchor()
    said = vouched.said()
    assert said["anchored_through"] == 2, "later entries are covered by no anchor"
    assert said["detail"].startswith("Anchoring is switched off since ")
    switch(vouched.api, on=True)
    anchor()
    said = vouched.said()
    assert (said["anchored_through"], said["anchored_by"]) == (4, ["log"])


def test_a_stranger_learns_nothing(
    api: ApiOf,
    mint: Callable[..., str],
    tenant: FreshTenant,
    other_tenant: FreshTenant,
    anchor: Callable[[], None],
) -> None:
    anchor()
    ours = {each["chain"] for each in listed(api(mint("read")))["data"]}
    theirs = {each["chain"] for each in listed(api(other_tenant.root_key))["data"]}
    assert len(ours) == len(theirs) == 1
    assert ours != theirs
    assert tenant.id.hex not in api().get("/v1/audit/anchors").text, "names tell nothing"


def test_an_export_ends_with_the_newest_anchors_and_their_number(
    api: ApiOf, anchor: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for on in (False, True, False, True):
        anchor()
        switch(api(), on=on)
    anchor()
    answer = api().get("/v1/audit", headers={"Accept": "application/x-ndjson"})
    trailer = json.loads(answer.text.splitlines()[-1])
    named = [{name: each[name] for name in ("seq", "hash")} for each in listed(api())["data"]]
    assert trailer["anchors"] == named
    assert trailer["anchors_total"] == 3
    monkeypatch.setattr("app.core.verification.export.MOST_ANCHORS", 2)
    answer = api().get("/v1/audit", headers={"Accept": "application/x-ndjson"})
    trailer = json.loads(answer.text.splitlines()[-1])
    assert [each["seq"] for each in trailer["anchors"]] == [6, 4]
    assert trailer["anchors_total"] == 3


def test_the_verifier_takes_a_genuine_export(
    api: ApiOf, anchor: Callable[[], None], log: Sequencer, database: Database, tmp_path: Path
) -> None:
    anchor()
    switch(api(), on=False)
    switch(api(), on=True)
    anchor()
    key = api(None).get("/v1/log/key").text.strip()
    (tmp_path / "policy").write_text(f"log {key}\nquorum none\n")

    name = listed(api())["data"][0]["chain"]

    def verified(*arguments: str) -> Answer:
        exported = api().get("/v1/audit", headers={"Accept": "application/x-ndjson"}).data
        (tmp_path / "chain.ndjson").write_bytes(exported)
        evidence = json.dumps(listed(api()))
        (tmp_path / "anchors.json").write_text(evidence)
        given = ("--anchors", tmp_path / "anchors.json")
        roots = ("--policy", tmp_path / "policy", "--chain", name, *given)
        return answer_of("audit", tmp_path / "chain.ndjson", *roots, *arguments)

    found = verified("--strict")
    own = "VALID, BUT FOR ENTRY 5, THE EXPORT'S OWN, WHICH NOTHING COVERS"
    assert (found.code, found.last) == (0, own), found.text
    assert found.verdicts["trailer"] == found.verdicts["anchor 1"] == "VALID"
    assert verified("--strict").of("NOT CHECKED") == ["entries 5 to 6"], "two exports' own"
    anchor_heads(database)
    found = verified()
    assert (found.code, found.of("NOT CHECKED")[0]) == (0, "anchor 1"), "it waits for the log"
    log.run()
    anchor()
    exported = [json.loads(line) for line in (tmp_path / "chain.ndjson").read_text().splitlines()]
    head = exported[-1]["head"]
    assert verified("--head", f"{head['seq']}:{head['hash']}").code == 0
    assert verified("--head", f"{head['seq']}:{'0' * 64}").code == 1
