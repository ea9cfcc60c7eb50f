"""The link at the end of a digest: one click clears the address that it went to, and no other."""

from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest
from flask.testing import FlaskClient
from sqlalchemy import text

from app.api.http import rate_limit
from app.core.digests import letters
from app.core.digests.letters import Subscription
from app.database import Database
from app.lib.crypto.sealing import MasterKeys
from app.lib.rates import Rate
from app.settings import Settings
from tests.support.callers.api import Api, ApiOf, FreshTenant

ADDRESS = "dana@example.com"
SETTINGS = "/v1/tenant/settings"
ONE_CLICK = {"List-Unsubscribe": "One-Click"}


@pytest.fixture
def subscribed(api: ApiOf) -> Api:
    assert api().patch(SETTINGS, {"notification_email": ADDRESS}).status_code == 200
    return api()


@pytest.fixture
def link(settings: Settings, database: Database, tenant: FreshTenant, subscribed: Api) -> str:
    with database.transaction(tenant.id) as session:
        nonce: UUID = session.execute(text("SELECT address_nonce FROM tenants")).scalar_one()
    token = letters.write_token(settings.master_keys, Subscription(tenant.id, nonce))
    return f"/unsubscribe/{token}"


def address(api: Api) -> Any:
    return api.get(SETTINGS).json["notification_email"]


def entries(api: Api) -> list[dict[str, Any]]:
    return list(api.get("/v1/audit?action=digest.unsubscribe").json["data"])


def test_one_click_clears_the_address_and_is_audited(
    subscribed: Api, client: FlaskClient, link: str
) -> None:
    answer = client.post(link, data=ONE_CLICK)
    assert answer.status_code == 200
    assert "No more mail" in answer.text
    assert address(subscribed) is None
    (entry,) = entries(subscribed)
    assert entry["actor"] == {"type": "link", "id": "digest.unsubscribe"}
    assert entry["details"] == {"notification_email": {"change": "cleared"}}
    assert entry["request_id"] == answer.headers["x-request-id"]
    assert ADDRESS not in subscribed.get("/v1/audit").text
    again = client.post(link, data=ONE_CLICK)
    assert (again.status_code, again.text) == (200, answer.text)
    assert len(entries(subscribed)) == 1


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_a_scanner_that_reads_the_link_changes_nothing(
    subscribed: Api, client: FlaskClient, link: str, method: str
) -> None:
    for _ in range(3):
        assert client.open(link, method=method).status_code == 200
    assert address(subscribed) == ADDRESS
    assert entries(subscribed) == []


def test_the_page_has_a_button_and_no_script(client: FlaskClient, link: str) -> None:
    page = client.get(link)
    assert '<form method="post">' in page.text
    assert "<script" not in page.text
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "form-action 'self'" in policy
    assert page.headers["Cache-Control"] == "private, no-store"
    assert page.headers["X-Robots-Tag"] == "noindex, nofollow"
    assert page.headers["Referrer-Policy"] == "no-referrer"
    assert ADDRESS not in page.text


def test_an_old_link_does_not_clear_a_newer_address(
    subscribed: Api, client: FlaskClient, link: str
) -> None:
    subscribed.patch(SETTINGS, {"notification_email": "erin@example.com"})
    answer = client.post(link, data=ONE_CLICK)
    assert answer.status_code == 200
    assert address(subscribed) == "erin@example.com"
    subscribed.patch(SETTINGS, {"notification_email": ADDRESS})
    assert client.post(link).text == answer.text
    assert address(subscribed) == ADDRESS, "the same address, but set anew"


def test_a_link_that_was_made_up_or_changed_does_nothing(
    subscribed: Api, client: FlaskClient, link: str, settings: Settings, tenant: FreshTenant
) -> None:
    subscription = Subscription(tenant.id, uuid4())
    strangers = letters.write_token(MasterKeys.parse(MasterKeys.generate()), subscription)
    token = link.rpartition("/")[2]
    flipped = ("B" if token[20] == "A" else "A").join((token[:20], token[21:]))
    sealed = settings.master_keys.seal(b"x" * 32, "cursor")
    for wrong in (strangers, flipped, token[:-4], token * 3, "nothing", "%C3%A4", sealed.hex()):
        for method in ("GET", "POST"):
            answer = client.open(f"/unsubscribe/{wrong}", method=method)
            assert (answer.status_code, "does nothing" in answer.text) == (404, True), wrong
    assert address(subscribed) == ADDRESS


def test_a_link_outlives_the_rotation_of_the_master_key(
    subscribed: Api, settings: Settings, link: str, environ: dict[str, str], tenant: FreshTenant
) -> None:
    rotated = MasterKeys.parse(f"{MasterKeys.generate()},{environ['MASTER_KEYS']}")
    token = link.rpartition("/")[2]
    named = letters.read_token(rotated, token)
    assert named is not None
    assert named == letters.read_token(settings.master_keys, token)
    assert named.tenant_id == tenant.id


def test_it_is_limited_by_address_as_whatever_needs_no_key(
    client: FlaskClient,
    link: str,
    app: Any,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = rate_limit.Limits.of(replace(settings, address_rate_limit=Rate(2, 60)))
    monkeypatch.setitem(app.extensions, rate_limit.EXTENSION, few)
    said = [client.post(link).status_code for _ in range(3)]
    assert said == [200, 200, 429]
