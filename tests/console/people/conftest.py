"""A service that knows an OpenID provider, and people who sign in there."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import requests
from flask import Flask

from app.core.callers import Role
from app.core.keys import groups
from app.database import Database
from app.settings import Settings
from tests.support.callers.api import FreshTenant, application
from tests.support.callers.console import BASE, Visitor
from tests.support.servers.openid import (
    CLIENT_ID,
    CLIENT_SECRET,
    OpenIdProvider,
    serving,
)

PAGE = "/console/webhooks"
BEGIN = "/console/sign-in/provider"


@pytest.fixture
def group(tenant: FreshTenant) -> str:
    return f"engineers of {tenant.id}"


@pytest.fixture
def provider(group: str) -> Iterator[OpenIdProvider]:
    with serving() as opened:
        opened.claims["groups"] = [group]
        yield opened


@pytest.fixture
def with_provider(settings: Settings, provider: OpenIdProvider) -> Iterator[Flask]:
    with application(knowing(settings, provider.issuer)) as opened:
        yield opened


@pytest.fixture
def give(database: Database, tenant: FreshTenant, group: str) -> Callable[..., None]:
    def give(role: Role | None, name: str = group, to: FreshTenant = tenant) -> None:
        with database.transaction(to.id) as session:
            assert groups.change(session, to.id, {name: role}) is None

    return give


def knowing(
    settings: Settings, issuer: str, secret: str = CLIENT_SECRET, scopes: str = "openid"
) -> Settings:
    told: dict[str, Any] = {
        "issuer": issuer,
        "client_id": CLIENT_ID,
        "client_secret": secret,
        "scopes": scopes,
    }
    return replace(settings, openid=replace(settings.openid, **told))


def come_back(visitor: Visitor, **begun: str) -> str:
    """Sign in at the provider; return the path that it sends the browser back to."""
    query = "&".join(f"{name}={value}" for name, value in begun.items())
    asked = visitor.get(f"{BEGIN}?{query}").headers["Location"]
    back = requests.get(asked, allow_redirects=False, timeout=5).headers["Location"]
    assert back.startswith(f"{BASE}{BEGIN}/answer?")
    return back.removeprefix(BASE)


def entered(app: Flask, **begun: str) -> Visitor:
    visitor = Visitor(app)
    assert visitor.get(come_back(visitor, **begun)).status_code == 303
    return visitor


def is_in(visitor: Visitor, **headers: str) -> bool:
    return visitor.get(PAGE, **headers).status_code == 200
