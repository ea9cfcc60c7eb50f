"""Signing in and out: keys, cookies, sessions and the limit on attempts."""

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from flask import Flask
from sqlalchemy import Engine, text

from app.api.http.access.rate_limit import SIGN_INS
from app.api.http.services import EXTENSION
from app.core.keys import console_sessions
from app.database import Database
from app.settings import Settings
from app.web import create_app
from tests.support.callers.api import ApiOf, FreshTenant
from tests.support.callers.console import Visitor, hidden, signed_in
from tests.support.callers.making import revoke

PAGE = "/console/deliveries"


def is_signed_in(visitor: Visitor, **headers: str) -> bool:
    return visitor.get(PAGE, **headers).status_code == 200


def grow_old(engine: Engine, tenant: FreshTenant, column: str, by: timedelta) -> None:
    with engine.begin() as connection:
        connection.execute(
            text(f"UPDATE console_sessions SET {column} = {column} - :by WHERE tenant_id = :t"),
            {"by": by, "t": tenant.id},
        )


def test_a_key_signs_in_and_its_cookie_is_out_of_reach_for_others(
    visitor: Visitor, tenant: FreshTenant
) -> None:
    led = visitor.get(f"{PAGE}?status=failed")
    assert led.status_code == 303
    page = visitor.get(led.headers["Location"])
    fields = hidden(page.text, "/console/sign-in")
    answer = visitor.sign_in(tenant.root_key, **fields)
    assert answer.headers["Location"] == f"{PAGE}?status=failed"
    (cookie,) = answer.headers.getlist("Set-Cookie")
    named, *attributes = cookie.split("; ")
    assert re.fullmatch(r"__Host-console_session=[A-Za-z0-9_-]{64}", named)
    assert {"Secure", "HttpOnly", "SameSite=Lax", "Path=/", "Max-Age=604800"} <= set(attributes)
    shown = visitor.get(PAGE)
    assert "default-src 'none'" in shown.headers["Content-Security-Policy"]
    assert shown.headers["Referrer-Policy"] == "same-origin"
    assert shown.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("key", ["", "nonsense", "svc_" + "A" * 40])
def test_a_key_that_is_not_good_gets_the_form_again_and_no_cookie(
    visitor: Visitor, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = visitor.sign_in(key, next=PAGE)
    said = capsys.readouterr().out
    assert ('"key_refused"' in said) == bool(key)
    assert not key or key not in said
    assert answer.status_code == 401
    assert "Set-Cookie" not in answer.headers
    assert hidden(answer.text, "/console/sign-in")["next"] == PAGE


@pytest.mark.parametrize("place", ["https://evil.test/", "//evil.test", "/console\\@evil", "/v1"])
def test_signing_in_leads_nowhere_else(visitor: Visitor, tenant: FreshTenant, place: str) -> None:
    assert visitor.sign_in(tenant.root_key, next=place).headers["Location"] == "/console"


def test_each_sign_in_ends_the_session_before_it(app: Flask, tenant: FreshTenant) -> None:
    first, thief = signed_in(app, tenant.root_key), Visitor(app)
    stolen = first.client.get_cookie("__Host-console_session", "records.test")
    assert stolen is not None
    thief.client.set_cookie(stolen.key, stolen.value, domain="records.test", secure=True)
    assert is_signed_in(thief)
    first.sign_in(tenant.root_key)
    assert is_signed_in(first)
    assert not is_signed_in(thief)


def test_signing_out_revoking_the_key_and_age_end_a_session(
    app: Flask, api: ApiOf, mint: Callable[..., str], tenant: FreshTenant, admin_engine: Engine
) -> None:
    keys = [mint("read") for _ in range(2)]
    visitors = [signed_in(app, key) for key in (*keys, tenant.root_key)]
    assert all(is_signed_in(visitor) for visitor in visitors)
    one, other, root = visitors
    one.post("/console/sign-out", one.form(PAGE, "/console/sign-out"))
    assert not is_signed_in(one)
    revoke(api, keys[1])
    assert not is_signed_in(other)
    grow_old(admin_engine, tenant, "created_at", console_sessions.LONGEST)
    assert not is_signed_in(root)


def test_a_page_that_refreshes_itself_keeps_no_session_alive(
    admin: Visitor, tenant: FreshTenant, admin_engine: Engine, database: Database
) -> None:
    almost = console_sessions.IDLE - timedelta(minutes=5)
    grow_old(admin_engine, tenant, "last_used_at", almost)
    polled = {"Sec-Fetch-Dest": "empty"}
    assert is_signed_in(admin, **polled)
    assert is_signed_in(admin)
    grow_old(admin_engine, tenant, "last_used_at", almost)
    assert is_signed_in(admin, **polled)
    grow_old(admin_engine, tenant, "last_used_at", timedelta(minutes=5))
    assert admin.get(PAGE, **polled).status_code == 401
    with database.across_tenants() as session:
        assert console_sessions.forget_old(session) >= 1
        kept = text("SELECT count(*) FROM console_sessions WHERE tenant_id = :t")
        assert session.scalar(kept, {"t": tenant.id}) == 0


def test_attempts_to_sign_in_are_limited(settings: Settings) -> None:
    own = create_app(settings)
    visitor = Visitor(own)
    answers = [visitor.sign_in("nonsense").status_code for _ in range(SIGN_INS.limit + 1)]
    own.extensions[EXTENSION].close()
    assert answers == [401] * SIGN_INS.limit + [429]
