"""A cached key is confirmed before any answer: a revoked one gets 401, whatever it asks."""

from typing import Any

import pytest

from tests.support.callers.api import ApiOf, Mint
from tests.support.callers.making import NOBODY, finding_of, make_session, refused, revoke


@pytest.mark.parametrize("path", ["/v1/findings", "/v1/findings/batch"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"headers": {"Idempotency-Key": "again"}},
        {"data": b"no json", "content_type": "application/json"},
        {"data": b"{}", "content_type": "application/json"},
        {"session_id": "ses_" + NOBODY},
        {"query_string": {"unknown": "1"}},
    ],
    ids=["good", "repeated", "malformed", "invalid", "not found", "unknown parameter"],
)
def test_a_revoked_key_is_unauthenticated_whatever_it_asks(
    api: ApiOf, mint: Mint, path: str, options: dict[str, Any]
) -> None:
    session = make_session(api())
    key = mint("write")
    options = dict(options)
    body: Any = finding_of(options.pop("session_id", session["id"]))
    if path.endswith("batch"):
        body = {"findings": [body]}
    if "data" not in options:
        options["json"] = body
    first = api(key).request("POST", path, **options)
    assert first.status_code != 401
    # By now every path through the route has met the key.
    assert api(key).request("POST", path, **options).status_code == first.status_code
    before = api().get("/v1/findings").json
    revoke(api, key)
    answer = api(key).request("POST", path, **options)
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    refused(answer, 401, "unauthenticated")
    assert api().get("/v1/findings").json == before


def test_a_revoked_key_of_too_low_a_role_is_unauthenticated(api: ApiOf, mint: Mint) -> None:
    key = mint("read")
    body = finding_of(make_session(api())["id"])
    for _ in range(2):
        refused(api(key).post("/v1/findings", body), 403, "insufficient-role")
    revoke(api, key)
    refused(api(key).post("/v1/findings", body), 401, "unauthenticated")
