"""Makes the things that most tests of the API begin with, through the API."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote
from uuid import UUID

from tests.support.callers.api import Api, ApiOf

NOBODY = "0" * 32


def make_agent(api: Api, **fields: Any) -> dict[str, Any]:
    """Make an agent."""
    return api.made("/v1/agents", {"name": "invoice-assistant"} | fields)


def make_key(api: Api, **fields: Any) -> dict[str, Any]:
    """Mint a key that may read."""
    return api.made("/v1/keys", {"name": "n", "role": "read"} | fields)


def revoke(api: ApiOf, key: str) -> None:
    """Revoke a key by its text, with the tenant's root key."""
    key_id = api(key).get("/v1/keys/self").json["id"]
    assert api().delete(f"/v1/keys/{key_id}").status_code == 204


def make_session(api: Api, agent_id: str | None = None, **fields: Any) -> dict[str, Any]:
    """Open a session, of an agent made for it unless one is given."""
    agent_id = agent_id or make_agent(api)["id"]
    return api.made(
        "/v1/sessions", {"agent_id": agent_id, "principal": "alice@example.com"} | fields
    )


def finding_of(session_id: str, **fields: Any) -> dict[str, Any]:
    """Return the body of a finding."""
    return {
        "session_id": session_id,
        "rule": "pii.in-log",
        "severity": "high",
        "title": "An address was written to a log",
    } | fields


def make_finding(api: Api, session_id: str, **fields: Any) -> dict[str, Any]:
    """Add a finding to a session."""
    return api.made("/v1/findings", finding_of(session_id, **fields))


def record_of(session_id: str, **fields: Any) -> dict[str, Any]:
    """Return the body of a record."""
    return {
        "session_id": session_id,
        "kind": "tool.call",
        "title": "Refunded an order",
        "content": {"order": "4711", "amount": "49.90 EUR"},
    } | fields


def make_record(api: Api, session_id: str, **fields: Any) -> dict[str, Any]:
    """Post a record of a session."""
    return api.made("/v1/records", record_of(session_id, **fields))


def make_share_link(api: Api, record_id: str, **fields: Any) -> dict[str, Any]:
    """Make a link that opens a record."""
    return api.made(f"/v1/records/{record_id}/share-links", fields)


def pin_of(session: dict[str, Any]) -> dict[str, str]:
    """Return the pin under which a session lies."""
    return {"agent_id": session["agent_id"], "principal": session["principal"]}


def refused(answer: Any, status: int, slug: str) -> dict[str, Any]:
    """Hold an answer to be this problem, and return it without its request id."""
    assert answer.status_code == status, answer.json
    assert answer.content_type == "application/problem+json"
    assert answer.json["type"].endswith(f"/problems/{slug}")
    assert answer.json["request_id"]
    return {name: value for name, value in answer.json.items() if name != "request_id"}


def pointers(answer: Any) -> list[str]:
    """Return where a 422 points to."""
    return [error["pointer"] for error in refused(answer, 422, "validation-failed")["errors"]]


def token_to(owner: Api, record: dict[str, Any]) -> tuple[str, str]:
    """Make a link to a record; return its token and its id."""
    made = make_share_link(owner, record["id"])
    return made["url"].rpartition("/")[2], made["id"]


def slug(answer: Any) -> str:
    """Return which problem an answer is."""
    return str(answer.json["type"].rpartition("/")[2])


def shifted(moment: str, microseconds: int) -> str:
    """Return an answered time moved by some microseconds, ready for a query string."""
    moved = datetime.fromisoformat(moment) + timedelta(microseconds=microseconds)
    return quote(moved.isoformat())


def uuid_of(known: str) -> UUID:
    """Return the UUID of an id such as `rec_…`, as the database has it."""
    return UUID(known.partition("_")[2])


def all_pages(
    api: Api, path: str, between: Callable[[], object] = lambda: None
) -> list[dict[str, Any]]:
    """Return the rows of every page of a list with a query; `between` is called after each page."""
    rows: list[dict[str, Any]] = []
    page = api.get(path).json
    while True:
        rows += page["data"]
        between()
        if page["next_cursor"] is None:
            return rows
        page = api.get(f"{path}&cursor={quote(page['next_cursor'])}").json
