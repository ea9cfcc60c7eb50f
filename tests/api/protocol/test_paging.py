"""Lists: every row once, newest first, while others insert; and cursors that open nothing else."""

from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest

from app import clock
from app.core import feeds
from tests.support.callers.api import ApiOf, FreshTenant
from tests.support.callers.making import make_agent, make_session


def names(answer: Any) -> list[str]:
    return [row["name"] for row in answer.json["data"]]


@pytest.fixture
def seven(api: ApiOf) -> list[str]:
    """Seven agents; returns their names, newest first."""
    made = [f"agent {number}" for number in range(7)]
    for name in made:
        assert api().post("/v1/agents", {"name": name}).status_code == 201
    return made[::-1]


@pytest.mark.parametrize("kind", ["agents", "sessions"])
def test_a_page_of_much_metadata_ends_before_it_is_too_large(api: ApiOf, kind: str) -> None:
    metadata = {"text": "x" * 60_000}
    if kind == "agents":
        made = [make_agent(api(), metadata=metadata)["id"] for _ in range(75)]
    else:
        agent = make_agent(api())["id"]
        made = [make_session(api(), agent, metadata=metadata)["id"] for _ in range(75)]

    first = api().get(f"/v1/{kind}?limit=200")
    seen = [row["id"] for row in first.json["data"]]
    assert 1 < len(seen) < 75
    assert len(first.data) < feeds.MOST_JSON + 2**18
    rest = api().get(f"/v1/{kind}?limit=200&cursor={first.json['next_cursor']}").json
    assert [*seen, *(row["id"] for row in rest["data"])] == made[::-1]
    assert rest["next_cursor"] is None


def test_the_link_header_leads_to_the_next_page(api: ApiOf, seven: list[str]) -> None:
    seen = []
    path: str | None = "/v1/agents?limit=2"
    while path is not None:
        answer = api().get(path)
        seen += names(answer)
        link = answer.headers.get("Link")
        assert (link is None) == (answer.json["next_cursor"] is None)
        path = None
        if link is not None:
            url, _, relation = link.partition(">; ")
            assert relation == 'rel="next"'
            assert url.startswith("<https://records.test/v1/agents?")
            parts = urlsplit(url[1:])
            path = f"{parts.path}?{parts.query}"

    assert seen == seven


@pytest.mark.parametrize("limit", ["0", "201", "-1", "030", "+5", "5.0", "1e1", "", "ten", "٣"])
def test_a_limit_outside_1_to_200_is_refused(api: ApiOf, limit: str) -> None:
    refused = api().get("/v1/agents", query_string={"limit": limit})

    assert refused.status_code == 422
    assert refused.json["errors"][0]["pointer"] == "/limit"


@pytest.mark.parametrize("cursor", ["", "x", "é", "A" * 1000, "A" * 1001, "%00", "="])
def test_a_made_up_cursor_is_refused(api: ApiOf, cursor: str) -> None:
    refused = api().get("/v1/agents", query_string={"cursor": cursor})

    assert refused.status_code == 422
    assert refused.json["errors"][0]["pointer"] == "/cursor"


def test_a_cursor_is_of_its_tenant_list_and_filters_and_not_of_its_limit(
    api: ApiOf, other_tenant: FreshTenant
) -> None:
    agent = api().post("/v1/agents", {"name": "a"}).json["id"]
    for principal in ("p", "q", "p", "p"):
        api().post("/v1/sessions", {"agent_id": agent, "principal": principal})
    since = clock.rfc3339(clock.now() - timedelta(hours=1))
    filtered = f"/v1/sessions?principal=p&since={since}"
    first = api().get(f"{filtered}&limit=1")
    cursor = first.json["next_cursor"]

    parts = urlsplit(first.headers["Link"].partition(">")[0][1:])
    linked = api().get(f"{parts.path}?{parts.query}").json
    rest = api().get(f"{filtered}&limit=2&cursor={cursor}").json
    assert [row["principal"] for row in rest["data"]] == ["p", "p"]
    assert linked["data"] == rest["data"][:1]
    assert rest["next_cursor"] is None
    stranger = api(other_tenant.root_key)
    assert stranger.get(f"{filtered}&cursor={cursor}").status_code == 422
    for path in ("/v1/sessions?", "/v1/keys?", f"{filtered}&agent_id={agent}&"):
        assert api().get(f"{path}cursor={cursor}").status_code == 422
    for place in range(len(cursor) - 1):
        changed = cursor[:place] + ("A" if cursor[place] != "A" else "B") + cursor[place + 1 :]
        assert api().get(f"{filtered}&cursor={changed}").status_code == 422, place
