"""An id that is none is refused where it is sent, with its field; in a path nothing is there."""

from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask

from tests.support.callers.api import ApiOf
from tests.support.callers.making import finding_of, make_session, record_of
from tests.support.callers.sending import make_webhook

FOLLOWED = (("/v1/records", "after"), ("/v1/webhooks/{webhook_id}/deliveries", "epoch"))
NO_IDS = ("{prefix}_1", "agent-Z", "{prefix}_" + "A" * 32, "0" * 32, "xyz_" + "0" * 32)


@pytest.fixture(scope="module")
def filters(app: Flask) -> list[tuple[str, str, str]]:
    """Every query parameter that is an id: path, name, prefix."""
    document = app.test_client().get("/openapi.json").get_json()
    return list(_filters(document))


def _filters(document: Any) -> Iterator[tuple[str, str, str]]:
    for path, operations in document["paths"].items():
        for each in operations.get("get", {}).get("parameters", ()):
            pattern = each.get("schema", {}).get("pattern", "")
            if each["in"] == "query" and pattern[4:12] == "_[0-9a-f":
                yield path, each["name"], pattern[1:4]


def test_an_id_that_is_none_is_refused_in_every_filter(
    api: ApiOf, filters: list[tuple[str, str, str]]
) -> None:
    webhook = make_webhook(api())["id"]

    assert len(filters) > 15
    for path, name, prefix in filters:
        for text in NO_IDS:
            sent = text.format(prefix=prefix)
            refused = api().get(path.format(webhook_id=webhook), query_string={name: sent})
            assert refused.status_code == 422, (path, name, sent)
            (error,) = refused.json["errors"]
            assert error["pointer"] == f"/{name}"
            assert f"{prefix}_" in error["detail"] or "group" in error["detail"]


def test_every_id_in_a_filter_is_known_as_one(
    filters: list[tuple[str, str, str]], app: Flask
) -> None:
    document = app.test_client().get("/openapi.json").get_json()
    named = {
        (path, each["name"])
        for path, operations in document["paths"].items()
        for each in operations.get("get", {}).get("parameters", ())
        if each["in"] == "query"
        and (each["name"].endswith(("_id", "group")) or (path, each["name"]) in FOLLOWED)
        # One of its owner's may be any text; a trace's is OpenTelemetry's.
        and each["name"] not in ("external_id", "trace_id")
    }
    assert named == {(path, name) for path, name, _ in filters}


@pytest.mark.parametrize("text", NO_IDS)
def test_an_id_that_is_none_is_refused_in_every_body(api: ApiOf, text: str) -> None:
    session = make_session(api())
    webhook = make_webhook(api())["id"]
    pin = {"agent_id": text.format(prefix="agt"), "principal": "p"}
    bodies = [
        ("/v1/sessions", pin, "/agent_id"),
        ("/v1/keys", {"name": "n", "role": "read", "pin": pin}, "/pin/agent_id"),
        ("/v1/records", record_of(text.format(prefix="ses")), "/session_id"),
        ("/v1/findings", finding_of(text.format(prefix="ses")), "/session_id"),
        (
            "/v1/findings/batch",
            {"findings": [finding_of(session["id"], record_id=text.format(prefix="rec"))]},
            "/findings/0/record_id",
        ),
        (f"/v1/webhooks/{webhook}/replay", {"ids": [text.format(prefix="dlv")]}, "/ids/0"),
        (f"/v1/webhooks/{webhook}/replay", {"group": text.format(prefix="grp")}, "/group"),
        ("/v1/deliveries/replay", {"group": "made up", "dry_run": True}, "/group"),
    ]
    for path, body, pointer in bodies:
        refused = api().post(path, body)
        assert refused.status_code == 422, (path, refused.json)
        assert [each["pointer"] for each in refused.json["errors"]] == [pointer]
