"""Proofs have the name that an agent had when the record was made, whatever it is called later."""

import json
from pathlib import Path

from sqlalchemy import Engine

from tests.support.callers.making import make_agent, make_record, make_session, make_share_link
from tests.support.evidence.packing import Packer, files_in, stored
from tests.support.evidence.verifying import answer

EXPORTS = ("prov.json", "otlp-traces.json", "otlp-logs.json")


def names_in(packer: Packer, record: dict[str, str]) -> set[str]:
    """Return what each export of a record calls its agent."""
    path, found = f"/v1/records/{record['id']}", set()
    made = {name: packer.api().get(f"{path}/{name}").json for name in EXPORTS}
    found.add(made["prov.json"]["agent"][f"agent:{record['agent_id']}"]["prov:label"])
    (spans,) = made["otlp-traces.json"]["resourceSpans"][0]["scopeSpans"]
    (logs,) = made["otlp-logs.json"]["resourceLogs"][0]["scopeLogs"]
    for told in (spans["spans"][0], logs["logRecords"][0]):
        attributes = {each["key"]: each["value"] for each in told["attributes"]}
        found.add(attributes["gen_ai.agent.name"]["stringValue"])
    return found


def test_a_record_keeps_the_name_that_its_agent_had(packer: Packer, admin_engine: Engine) -> None:
    api = packer.api()
    agent = make_agent(api, name="Loans <b>2</b>")
    session = make_session(api, agent["id"])
    records = [make_record(api, session["id"])]
    packer.log.run()
    tags = [api.get(f"/v1/records/{records[0]['id']}/{name}").headers["ETag"] for name in EXPORTS]
    before = packer.built(records[0])
    for name in ("Innocent", "Clerk"):
        assert api.patch(f"/v1/agents/{agent['id']}", {"name": name}).status_code == 200
        records.append(make_record(api, session["id"]))
    packer.log.run()
    for record, name in zip(records, ("Loans <b>2</b>", "Innocent", "Clerk"), strict=True):
        assert names_in(packer, record) == {name}
        files = files_in(packer.built(record))
        for file in ("anchor.json", "manifest.json"):
            told = json.loads(files[file])["agent"]
            assert told == {"id": agent["id"], "name": name}, file
        assert f"Agent:       {name} ({agent['id']})" in files["README.txt"].decode()
        prov = json.loads(files["prov.json"])
        assert prov["agent"][f"agent:{agent['id']}"]["prov:label"] == name
    # Nothing of the first record changed, so nothing of it was made anew.
    again = packer.ask(records[0])
    assert (again.data, again.headers["x-service-evidence"]) == (before, "current")
    assert stored(admin_engine, records[0]) == [(True, False, 1)]
    assert [
        api.get(f"/v1/records/{records[0]['id']}/{name}").headers["ETag"] for name in EXPORTS
    ] == tags


def test_a_share_page_has_the_name_as_a_text(packer: Packer) -> None:
    api = packer.api()
    agent = make_agent(api, name="Loans <b>\u202e2</b>")
    record = make_record(api, make_session(api, agent["id"])["id"])
    assert api.patch(f"/v1/agents/{agent['id']}", {"name": "Innocent"}).status_code == 200
    link = make_share_link(api, record["id"])
    page = packer.api(None).get("/s/" + link["url"].rpartition("/")[2]).text
    assert "Loans &lt;b&gt;" in page
    assert "\u202e" not in page
    assert "Innocent" not in page
    assert agent["id"] in page


def test_the_name_in_a_pack_is_the_signed_one(packer: Packer, tmp_path: Path) -> None:
    record = packer.record()
    data = packer.built(record)
    (tmp_path / "pack.zip").write_bytes(data)
    found = answer(tmp_path / "pack.zip")
    assert found.code == 0, found.text
    assert "was called" not in found.text, "nobody has to be believed for it"
    agent = json.loads(files_in(data)["bundle.json"])["record"]["agent"]
    assert agent == {"id": record["agent_id"], "name": "invoice-assistant"}
