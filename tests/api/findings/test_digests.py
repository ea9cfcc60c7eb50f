"""`GET /v1/digests`, and the findings of one."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, text

from app import ids
from tests.support.callers.api import ApiOf, FreshTenant
from tests.support.callers.making import make_finding, make_session, pin_of


@pytest.fixture
def digests(admin_engine: Engine, tenant: FreshTenant) -> list[UUID]:
    """Give the tenant three digests: sent, cancelled, and one that is tried."""
    made = [ids.new() for _ in range(3)]
    insert = text(
        "INSERT INTO digests (tenant_id, id, series, status, findings, refusals, error, data_at,"
        " sent_at) VALUES (:tenant, :id, :tenant, :status, :findings, :refusals, :error,"
        " CASE WHEN :status = 'sent' THEN clock_timestamp() END,"
        " CASE WHEN :status = 'sent' THEN clock_timestamp() END)"
    )
    rows: list[tuple[str, int | None, int, str | None]] = [
        ("sent", 3, 0, None),
        ("cancelled", None, 0, "The address was cleared."),
        ("pending", 2, 1, "The mail server refused the recipient (550)."),
    ]
    with admin_engine.begin() as connection:
        for digest, (status, findings, refusals, error) in zip(made, rows, strict=True):
            values = {"status": status, "findings": findings, "refusals": refusals, "error": error}
            connection.execute(insert, {"tenant": tenant.id, "id": digest, **values})
    return made


def test_digests_are_listed_newest_first_without_the_addresses_they_went_to(
    api: ApiOf, digests: list[UUID]
) -> None:
    api().patch("/v1/tenant/settings", {"notification_email": "dana@example.com"})
    answer = api().get("/v1/digests")
    assert [row["id"] for row in answer.json["data"]] == [
        ids.text("dig", digest) for digest in reversed(digests)
    ]
    tried, cancelled, sent = answer.json["data"]
    assert (tried["status"], tried["refusals"], tried["data_at"]) == ("pending", 1, None)
    assert tried["error"] == "The mail server refused the recipient (550)."
    assert (cancelled["status"], cancelled["findings"]) == ("cancelled", None)
    assert (sent["status"], sent["findings"]) == ("sent", 3)
    assert sent["claimed_at"] <= sent["data_at"] <= sent["sent_at"]
    assert "@" not in str(answer.json["data"])


def test_the_next_is_told_with_its_time_and_its_address(api: ApiOf, tenant: FreshTenant) -> None:
    assert api().get("/v1/digests").json["next"] is None
    api().patch("/v1/tenant/settings", {"notification_email": "dana@example.com"})
    empty = {"to": "dana@example.com", "digest_id": None, "due_at": None, "not_before": None}
    assert api().get("/v1/digests").json["next"] == empty
    found = make_finding(api(), make_session(api())["id"])
    due = api().get("/v1/digests").json["next"]["due_at"]
    settled = datetime.fromisoformat(found["created_at"]) + timedelta(minutes=15)
    assert datetime.fromisoformat(due) == settled


def test_a_refused_recipient_is_shown_as_a_state_of_its_own(
    api: ApiOf, digests: list[UUID], admin_engine: Engine
) -> None:
    refuse = text(
        "UPDATE digests SET refusal = 'recipient', said = '550 nobody' WHERE status = 'pending'"
        " AND id = :id"
    )
    with admin_engine.begin() as connection:
        connection.execute(refuse, {"id": digests[2]})
    tried = api().get("/v1/digests").json["data"][0]
    assert (tried["status"], tried["said"], tried["brief"]) == (
        "recipient_refused",
        "550 nobody",
        False,
    )


def test_the_findings_of_a_digest_are_listed_for_whom_they_concern(
    api: ApiOf, mint: Callable[..., str], digests: list[UUID], admin_engine: Engine
) -> None:
    session, other = make_session(api()), make_session(api())
    ours, theirs, outside = (make_finding(api(), each["id"]) for each in (session, other, session))
    listed: dict[str, Any] = {"digest": digests[0]}
    with admin_engine.begin() as connection:
        for finding in (ours, theirs):
            connection.execute(
                text("UPDATE findings SET digest_id = :digest WHERE id = :id"),
                listed | {"id": ids.parse("fnd", finding["id"])},
            )
    path = f"/v1/findings?digest_id={ids.text('dig', digests[0])}"
    assert [row["id"] for row in api().get(path).json["data"]] == [theirs["id"], ours["id"]]
    pinned = api(mint("read", pin_of(session)))
    assert [row["id"] for row in pinned.get(path).json["data"]] == [ours["id"]]
    unknown = ids.text("dig", ids.new())
    assert api().get(f"/v1/findings?digest_id={unknown}").json["data"] == []
    assert outside["id"] not in api().get(path).text
