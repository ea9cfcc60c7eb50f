"""An operator's way back into a tenant: what each command changes, says, and leaves behind."""

from collections.abc import Callable
from typing import Any

import pytest
from flask.testing import FlaskClient

from app import ids
from app.manage import commands
from tests.support.callers.api import Api, ApiOf, FreshTenant
from tests.support.callers.making import (
    finding_of,
    make_record,
    make_session,
    make_share_link,
    refused,
    revoke,
)

Operate = Callable[..., str]


@pytest.fixture
def operate(
    environ: dict[str, str],
    tenant: FreshTenant,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Operate:
    """Return a runner of `manage tenant COMMAND <the tenant>`, which answers what it printed."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)

    def run(command: str, *options: str) -> str:
        capsys.readouterr()
        assert commands.main(["tenant", command, *options, ids.text("ten", tenant.id)]) == 0
        return capsys.readouterr().out

    return run


def actions(api: Api) -> list[str]:
    entries = api.get("/v1/audit?order=asc&limit=200").json["data"]
    return [entry["action"] for entry in entries]


def test_keys_of_a_suspended_tenant_answer_403_and_are_good_again_after_it(
    api: ApiOf, operate: Operate, mint: Callable[..., str], other_tenant: FreshTenant
) -> None:
    session = make_session(api())
    revoked = mint("read")
    revoke(api, revoked)
    writer = mint("write")
    # Met before, so it is not looked up again by the route that confirms keys itself.
    assert api(writer).post("/v1/findings", finding_of(session["id"])).status_code == 201

    assert operate("suspend", "--reason", "leaked") == "suspended\n"
    for answer in (
        api().get("/v1/keys/self"),
        api(writer).post("/v1/findings", finding_of(session["id"])),
        api(writer).get("/v1/records"),
    ):
        refused(answer, 403, "tenant-suspended")
    refused(api(revoked).get("/v1/keys/self"), 401, "unauthenticated")
    assert api(other_tenant.root_key).get("/v1/keys/self").status_code == 200

    assert operate("resume") == "resumed\n"
    assert api().get("/v1/keys/self").json["revoked_at"] is None
    assert api(writer).post("/v1/findings", finding_of(session["id"])).status_code == 201
    refused(api(revoked).get("/v1/keys/self"), 401, "unauthenticated")


def test_suspending_and_resuming_twice_changes_nothing_and_is_audited_once(
    api: ApiOf, operate: Operate
) -> None:
    assert operate("resume") == "it was not suspended: nothing was changed\n"
    assert operate("suspend", "--reason", "leaked") == "suspended\n"
    assert operate("suspend") == "it was suspended before: nothing was changed\n"
    assert operate("resume") == "resumed\n"
    assert operate("resume") == "it was not suspended: nothing was changed\n"
    assert actions(api())[2:] == ["tenant.suspend", "tenant.resume"]
    (entry,) = api().get("/v1/audit?action=tenant.suspend").json["data"]
    assert entry["actor"] == {"type": "operator", "id": "manage"}
    assert entry["details"] == {"reason": "leaked"}
    assert api().get("/v1/audit/verify").status_code == 200


@pytest.mark.parametrize("visibility", ["private", "public"])
def test_links_and_public_records_of_a_suspended_tenant_open_nothing(
    api: ApiOf, client: FlaskClient, operate: Operate, visibility: str
) -> None:
    api().patch("/v1/tenant/settings", {"bundle_visibility": visibility})
    record = make_record(api(), make_session(api())["id"])
    link = make_share_link(api(), record["id"])
    page = link["url"].partition("records.test")[2]
    token = page.rpartition("/")[2]
    content = f"/v1/records/{record['id']}/bundle"
    paths = (page, f"{content}?share_token={token}")
    assert [client.get(path).status_code for path in paths] == [200, 200]

    operate("suspend")
    assert [client.get(path).status_code for path in paths] == [404, 404]
    assert client.get(content).status_code == 401
    operate("resume")
    assert [client.get(path).status_code for path in paths] == [200, 200]


def test_every_key_is_revoked_for_good(
    api: ApiOf, operate: Operate, mint: Callable[..., str], tenant: FreshTenant
) -> None:
    keys = [tenant.root_key, mint("read"), mint("admin")]
    assert operate("revoke-keys", "--yes") == "revoked 3 keys\n"
    assert operate("revoke-keys", "--yes") == "revoked 0 keys\n"
    assert {api(key).get("/v1/keys/self").status_code for key in keys} == {401}

    fresh = operate("mint", "--name", "break glass").removeprefix("key: ").strip()
    refusals = ["access.refused"] * 3
    assert actions(api(fresh))[4:] == ["key.revoke"] * 3 + refusals + ["key.mint"]
    (entry,) = api(fresh).get("/v1/audit?action=key.mint&limit=1").json["data"]
    assert entry["details"] == {"name": "break glass", "role": "admin"}
    key = operate("mint", "--role", "read", "--days", "2").removeprefix("key: ").strip()
    shown: Any = api(key).get("/v1/keys/self").json
    assert (shown["name"], shown["role"], shown["created_by"]) == ("operator", "read", None)
    assert shown["expires_at"] is not None


def test_keys_revoked_while_suspended_stay_revoked(api: ApiOf, operate: Operate) -> None:
    operate("suspend")
    assert operate("revoke-keys", "--yes") == "revoked 1 keys\n"
    refused(api().get("/v1/keys/self"), 401, "unauthenticated")
    fresh = operate("mint").removeprefix("key: ").strip()
    refused(api(fresh).get("/v1/keys/self"), 403, "tenant-suspended")
    operate("resume")
    refused(api().get("/v1/keys/self"), 401, "unauthenticated")
    assert api(fresh).get("/v1/keys/self").json["role"] == "admin"


def test_the_list_says_who_is_suspended_and_what_each_has_stored(
    api: ApiOf, operate: Operate, tenant: FreshTenant, other_tenant: FreshTenant, capsys: Any
) -> None:
    session = make_session(api())
    for _ in range(2):
        make_record(api(), session["id"], content="x" * (1 << 19))
    operate("suspend")
    assert commands.main(["tenant", "list"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    ours, other = (lines[ids.text("ten", each.id)] for each in (tenant, other_tenant))
    assert "  2 records  1.0 MiB  " in ours
    assert "  0 records  0.0 MiB  " in other
    assert [each for each in lines.values() if "suspended since" in each] == [ours]
    operate("resume")


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["suspend", f"ten_{'0' * 32}"], 1, "There is no tenant ten_000"),
        (["resume", f"ten_{'0' * 32}"], 1, "There is no tenant"),
        (["mint", f"ten_{'0' * 32}"], 1, "There is no tenant"),
        (["revoke-keys", f"ten_{'0' * 32}"], 1, "say --yes"),
        (["suspend", "acme"], 2, "ten_ and 32 hex digits"),
        (["mint", f"ten_{'0' * 32}", "--name", ""], 2, "1 to 200 characters"),
        (["mint", f"ten_{'0' * 32}", "--days", "0"], 2, "1<=x<=3650"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    operate: Operate, capsys: Any, arguments: list[str], status: int, said: str
) -> None:
    found = commands.main(["tenant", *arguments])
    error = capsys.readouterr().err
    assert (found, said in error) == (status, True), error
    assert "Traceback" not in error
