"""The command's habits: exit codes, JSON, pipes, questions, secrets."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.client.conftest import Command
from tests.support.callers.api import ApiOf, FreshTenant
from tests.support.callers.making import NOBODY, make_agent, make_finding, make_record
from tests.support.servers.receivers import Receiver, http_answer

NO_HEAD = f"1:{'0' * 64}"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["whoami"], 0, ""),
        (["audit", "verify", "--head", NO_HEAD], 1, "audit chain is broken"),
        (["nonsense"], 2, "record-service --help"),
        (["session", "open"], 2, "--agent"),
        (["findings", "list", "--since", "yesterday"], 2, "/since"),
        (["settings", "set"], 2, "Name what is to change"),
        (["record", "show", f"rec_{NOBODY}"], 3, "Not found"),
        (["--patience", "0", "keys", "revoke", f"key_{NOBODY}", "--yes"], 3, "Not found"),
        (["bundle", "../../v1/keys"], 3, "Not found"),
    ],
)
def test_the_exit_code_says_how_it_ended(
    records_process: Command, arguments: list[str], code: int, said: str
) -> None:
    ran = records_process(*arguments)

    assert ran.code == code, ran.err
    assert said in ran.err
    assert ran.err.count("\n") == (1 if code else 0)


def test_a_key_that_is_refused_ends_with_4_and_is_not_printed(
    records: Command, api: ApiOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = api().post("/v1/keys", {"name": "n", "role": "read"}).json["key"]
    for key, said in (("svc_" + "x" * 46, "No valid API key"), (read, "role is too low")):
        monkeypatch.setenv("SERVICE_API_KEY", key)
        ran = records("keys", "mint", "n", "--role", "read")
        assert (ran.code, said in ran.err, key in ran.err) == (4, True, False)


def test_a_conflict_ends_with_5(records: Command, session: dict[str, Any]) -> None:
    assert records("session", "complete", session["id"]).code == 0
    assert records("session", "complete", session["id"]).code == 5


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("SERVICE_BASE_URL", "http://127.0.0.1:9", 6),
        ("SERVICE_BASE_URL", "127.0.0.1:8000", 2),
        ("SERVICE_BASE_URL", "", 2),
        ("SERVICE_API_KEY", "", 2),
    ],
)
def test_a_service_that_is_not_there_or_not_named_is_told(
    records: Command, monkeypatch: pytest.MonkeyPatch, name: str, value: str, code: int
) -> None:
    monkeypatch.setenv(name, value)
    ran = records("--patience", "0", "whoami")
    assert (ran.code, "SERVICE_" in ran.err, ran.err.count("\n")) == (code, True, 1)


def test_json_is_what_the_api_answers_before_or_after_the_command(
    records: Command, api: ApiOf
) -> None:
    agent = make_agent(api())
    listed = api().get("/v1/agents").json

    for arguments in (["--json", "agents", "list"], ["agents", "list", "--json"]):
        assert json.loads(records(*arguments).out) == listed
    assert json.loads(records("agent", "show", agent["id"], "--json").out) == agent


def test_a_list_ends_where_its_limit_says_and_its_cursor_goes_on_from_there(
    records: Command, api: ApiOf
) -> None:
    ids = [make_agent(api())["id"] for _ in range(5)][::-1]

    first = json.loads(records("agents", "list", "--limit", "3", "--json").out)
    rest = api().get(f"/v1/agents?cursor={first['next_cursor']}").json["data"]
    assert [each["id"] for each in first["data"] + rest] == ids
    everything = records("agents", "list", "--all").out
    assert [line.partition("\t")[0] for line in everything.splitlines()] == ids


def test_a_pipe_gets_whole_values_and_nothing_that_steers_a_terminal(
    records: Command, api: ApiOf, session: dict[str, Any]
) -> None:
    title = f"{'long ' * 60}\x1b[31mred\ttab\u202e"
    make_finding(api(), session["id"], title=title)

    (line,) = records("findings", "list").out.splitlines()
    shown = line.split("\t")[3]
    assert shown == title.replace("\x1b", "\\u001b").replace("\t", "\\t").replace(
        "\u202e", "\\u202e"
    )
    assert records("findings", "tail").out == f"{line}\n"
    assert records("findings", "list", "--q", "LONG").out == f"{line}\n"
    assert records("search", "long", "long").out.startswith("finding\tfnd_")


def test_what_destroys_asks_and_without_a_terminal_fails(records: Command, api: ApiOf) -> None:
    minted = json.loads(records("keys", "mint", "n", "--role", "read", "--json").out)

    refused = records("keys", "revoke", minted["id"])
    assert (refused.code, "--yes" in refused.err) == (2, True)
    assert api(minted["key"]).get("/v1/keys/self").status_code == 200
    assert records("keys", "revoke", minted["id"], "--yes").code == 0
    assert api(minted["key"]).get("/v1/keys/self").status_code == 401


def test_settings_are_changed_as_named(records: Command, api: ApiOf) -> None:
    changed = records(
        "settings", "set", "--bundle-visibility", "public", "--anchoring-enabled", "false", "--json"
    )
    assert json.loads(changed.out) == api().get("/v1/tenant/settings").json
    told = json.loads(changed.out)
    assert (told["bundle_visibility"], told["anchoring_enabled"]) == ("public", False)
    days = ["settings", "set", "--bundle-retention-days", "30"]
    assert [records(*days).code, records(*days, "--yes").code] == [2, 0]
    assert records(*days[:-1], "null").code == 0


def test_an_answer_that_was_cut_is_no_export(
    records: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = http_answer(200, b"{ cut here", {"Connection": "close"})
    cut = whole.removesuffix(b" here")
    to = tmp_path / "bundle"
    with Receiver(cut) as service:
        monkeypatch.setenv("SERVICE_BASE_URL", service.url(""))
        ran = records("bundle", f"rec_{NOBODY}", "-o", str(to))
    assert (ran.code, "before the end" in ran.err, list(tmp_path.glob("bundle*"))) == (6, True, [])


def test_an_export_of_the_chain_is_whole(records: Command, tmp_path: Path) -> None:
    to = tmp_path / "chain.ndjson"
    assert records("audit", "export", "-o", str(to)).code == 0
    lines = [json.loads(line) for line in to.read_text().splitlines()]
    assert lines[-1]["type"] == "trailer"
    assert not list(tmp_path.glob("*.part"))


def test_whoami_names_the_tenant(records: Command, tenant: FreshTenant) -> None:
    assert f"tenant_id\tten_{tenant.id.hex}\n" in records("whoami").out


def test_agents_and_sessions_go_by_ids_of_their_owner_s(records: Command) -> None:
    made = records("agent", "add", "desk", "--external-id", "desk-7", "--version", "2", "--json")
    agent = json.loads(made.out)["id"]
    assert records("agents", "list", "--external-id", "desk-7").out.split("\t")[:4] == [
        agent,
        "desk",
        "desk-7",
        "2",
    ]
    assert records("agents", "list", "--name", "other").out == ""
    opened = ("--agent", agent, "--principal", "p", "--external-id", "chat/1")
    session = json.loads(records("session", "open", *opened, "--json").out)["id"]
    (line,) = records("sessions", "list", "--external-id", "chat/1").out.splitlines()
    assert line.split("\t")[0] == session
    assert "chat/1" in line


def test_a_rule_is_refused_with_its_place_tried_added_and_switched(
    records: Command, api: ApiOf, session: dict[str, Any], tmp_path: Path
) -> None:
    make_record(api(), session["id"], content={"amount": 2000})
    rule = {"name": "n", "on": "record", "when": "recrod.kind == 'a'", "severity": "low"}
    file = tmp_path / "rule.json"
    file.write_text(json.dumps(rule | {"title": "{{content.amount}}"}))

    refused = records("rules", "add", str(file))
    assert refused.code == 2, refused.err
    assert "`recrod` is not declared; `record` is" in refused.err
    file.write_text(json.dumps(rule | {"when": "content.amount > 1", "title": "t"}))
    tried = json.loads(records("rules", "test", str(file), "--json").out)
    assert (tried["evaluated"], tried["matched"]) == (1, 1)
    made = json.loads(records("rule", "add", str(file), "--enable", "--json").out)
    assert made["state"] == "on"
    assert records("rules", "disable", made["id"]).code == 0
    file.write_text(json.dumps({"severity": "high"}))
    changed = json.loads(records("rules", "update", made["id"], str(file), "--json").out)
    assert (changed["severity"], changed["version"]) == ("high", made["version"] + 1)
    ready = records("rules", "add", "--example", "card-number", "--json")
    listed = json.loads(records("rules", "list", "--json").out)["data"]
    assert [each["name"] for each in listed] == [json.loads(ready.out)["name"], "n"]
    assert {each["state"] for each in listed} == {"off"}
    assert records("rules", "show", made["id"], "--versions").out.count("\n") == 2
    span = ("--since", "2026-01-01T00:00:00Z", "--until", "2026-01-02T00:00:00Z")
    assert json.loads(records("rules", "backfill", made["id"], *span, "--json").out)["kind"] == (
        "rule_backfill"
    )
    assert records("rules", "add", str(file), "--example", "card-number").code == 2
    assert records("rules", "add", "--example", "nothing").code == 2
    assert records("rules", "delete", made["id"], "--yes").code == 0
    assert records("rules", "show", made["id"]).code == 3
