"""What the OpenID provider answers: what is believed of it, and what is not."""

import re
import time
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import pytest
import requests
from flask import Flask
from joserfc import jwt
from joserfc.jwk import OctKey

from app.api.http.services import EXTENSION
from app.core.callers import Role
from app.lib import openid_connect
from app.lib.openid_connect import Client, NotSignedIn
from app.settings import Settings
from app.web import create_app
from tests.console.people.conftest import BEGIN, PAGE, come_back, entered, is_in, knowing
from tests.support.callers.api import ApiOf, FreshTenant
from tests.support.callers.console import BASE, Visitor
from tests.support.programs import oidc_provider
from tests.support.servers.openid import (
    CLIENT_ID,
    CLIENT_SECRET,
    OpenIdProvider,
    new_key,
)

BAD_TOKENS: dict[str, Callable[[OpenIdProvider], object]] = {
    "issuer": lambda it: it.token.update(iss="https://evil.test"),
    "audience": lambda it: it.token.update(aud="another"),
    "audiences without azp": lambda it: it.token.update(aud=[CLIENT_ID, "another"]),
    "authorized party": lambda it: it.token.update(azp="another"),
    "expired": lambda it: it.token.update(exp=int(time.time()) - 3600),
    "no expiry": lambda it: it.token.update(exp=None),
    "of the future": lambda it: it.token.update(iat=int(time.time()) + 3600),
    "nonce": lambda it: it.token.update(nonce="another"),
    "no nonce": lambda it: it.token.update(nonce=None),
    "access token": lambda it: it.token.update(at_hash="AAAA"),
    "no subject": lambda it: it.token.update(sub=None),
    "odd subject": lambda it: it.token.update(sub="a\nb"),
    "key of nobody": lambda it: setattr(it, "key", new_key("stranger")),
    "another key by that name": lambda it: setattr(it, "key", new_key("first")),
    "HMAC by the secret": lambda it: setattr(
        it,
        "raw_token",
        jwt.encode(
            {"alg": "HS256", "kid": "first"},
            {"sub": "ada"},
            OctKey.import_key(CLIENT_SECRET.encode() * 2),
        ),
    ),
    "no signature": lambda it: setattr(it, "raw_token", "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZGEifQ."),
    "no token": lambda it: setattr(it, "raw_token", "nonsense"),
    "userinfo of another": lambda it: vars(it).update(
        told_at_userinfo=("groups",), userinfo_subject="eve"
    ),
    "denied": lambda it: setattr(it, "refusal", "access_denied"),
}


@pytest.mark.parametrize("wrong", BAD_TOKENS)
def test_an_answer_that_does_not_hold_signs_nobody_in(
    with_provider: Flask, provider: OpenIdProvider, give: Callable[..., None], wrong: str
) -> None:
    give(Role.ADMIN)
    BAD_TOKENS[wrong](provider)
    visitor = Visitor(with_provider)
    answer = visitor.get(come_back(visitor))
    assert answer.status_code == 401
    assert "You are not signed in" in answer.text
    assert not is_in(visitor)


def test_an_answer_is_of_the_browser_that_asked_and_counts_once(
    with_provider: Flask, give: Callable[..., None], provider: OpenIdProvider
) -> None:
    give(Role.READ)
    victim, attacker = Visitor(with_provider), Visitor(with_provider)
    back = come_back(attacker)
    # Login CSRF: the attacker's answer in the victim's browser, before and within a sign-in.
    assert victim.get(back).status_code == 401
    victim.get(BEGIN)
    assert victim.get(back).status_code == 401
    assert not is_in(victim)
    other = re.sub(r"iss=[^&]+", "iss=https%3A%2F%2Fevil.test", come_back(attacker))
    assert attacker.get(other).status_code == 401
    back = come_back(attacker)
    assert attacker.get(back).status_code == 303
    again = Visitor(with_provider)
    again.get(BEGIN)
    assert attacker.get(back).status_code == 401
    assert provider.asked.count("/token") == 1


@pytest.mark.parametrize("place", ["https://evil.test", "//evil.test", "/console%5C@evil", "/v1"])
def test_signing_in_leads_nowhere_else(
    with_provider: Flask, give: Callable[..., None], place: str
) -> None:
    give(Role.READ)
    visitor = Visitor(with_provider)
    assert visitor.get(come_back(visitor, next=place)).headers["Location"] == "/console"


def test_a_provider_that_is_away_is_told_and_keys_sign_in_as_before(
    with_provider: Flask, provider: OpenIdProvider, tenant: FreshTenant, give: Callable[..., None]
) -> None:
    give(Role.READ)
    visitor = Visitor(with_provider)
    provider.status = 503
    away = visitor.get(BEGIN)
    assert away.status_code == 503
    assert "does not answer as it should" in away.text
    assert visitor.sign_in(tenant.root_key).status_code == 303
    assert is_in(visitor)


def test_another_issuer_s_metadata_is_not_used(
    with_provider: Flask, provider: OpenIdProvider
) -> None:
    provider.metadata["issuer"] = "https://evil.test"
    answer = Visitor(with_provider).get(BEGIN)
    assert answer.status_code == 503
    assert "another issuer" in answer.text


def test_new_keys_of_the_provider_are_fetched_once_they_sign(
    with_provider: Flask,
    provider: OpenIdProvider,
    give: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    give(Role.READ)
    entered(with_provider)
    entered(with_provider)
    assert provider.asked.count("/jwks") == 1
    assert provider.asked.count("/.well-known/openid-configuration") == 1
    provider.key = new_key("second")
    provider.published = [provider.key]
    visitor = Visitor(with_provider)
    # Not within the same minute: whoever sends tokens would have it asked each time.
    assert visitor.get(come_back(visitor)).status_code == 401
    assert provider.asked.count("/jwks") == 1
    monkeypatch.setattr(openid_connect, "_KEYS_AGAIN_SECONDS", 0.0)
    assert visitor.get(come_back(visitor)).status_code == 303


def test_groups_and_address_may_be_told_at_userinfo_alone_and_an_address_must_be_verified(
    with_provider: Flask, provider: OpenIdProvider, give: Callable[..., None], api: ApiOf
) -> None:
    give(Role.READ)
    provider.told_at_userinfo = ("groups", "email", "name")
    provider.claims["email_verified"] = False
    entered(with_provider)
    actor: dict[str, Any] = api().get("/v1/audit?action=console.").json["data"][0]["actor"]
    assert (actor["person"]["name"], actor["person"]["email"]) == ("Ada Lovelace", None)


def test_of_a_provider_that_signs_by_hmac_alone_nothing_is_believed() -> None:
    key, now = OctKey.generate_key(256, {"kid": "a"}), int(time.time())
    told = {"iss": "i", "sub": "s", "aud": "c", "iat": now, "exp": now + 60, "nonce": "n"}
    token = jwt.encode({"alg": "HS256", "kid": "a"}, told, key)
    keys = {"keys": [key.as_dict(private=True)]}
    client = Client("i", "c", "s", "back", "openid", "groups")
    granted = {"id_token": token, "access_token": "t"}
    with pytest.raises(NotSignedIn):
        openid_connect.claims(granted, keys, client, "n", algorithms=["HS256"])


@pytest.mark.toolbox
@pytest.mark.skipif(oidc_provider.missing() is not None, reason=str(oidc_provider.missing()))
def test_a_provider_that_somebody_else_wrote_signs_people_in_and_out(
    settings: Settings, tenant: FreshTenant, give: Callable[..., None], group: str, tmp_path: Path
) -> None:
    give(Role.WRITE)
    secret = "s3cret/of the+console%"
    known: dict[str, Any] = {"client_id": CLIENT_ID, "client_secret": secret, "groups": [group]}
    places: dict[str, Any] = {"back": f"{BASE}{BEGIN}/answer", "out": f"{BASE}/console/sign-in"}
    with oidc_provider.serving(**known, **places, log=tmp_path / "node.log") as issuer:
        created = create_app(knowing(settings, issuer, secret, "openid email profile groups"))
        visitor, browser = Visitor(created), requests.Session()
        step = visitor.get(BEGIN).headers["Location"]
        while not step.startswith(BASE):
            page = browser.get(step, allow_redirects=False, timeout=5)
            if page.status_code == 200:
                action = re.search(r'action="([^"]+)"', page.text)
                prompt = re.search(r'name="prompt" value="([^"]+)"', page.text)
                assert action is not None
                assert prompt is not None
                typed = {"prompt": prompt[1], "login": "grace", "password": "x"}
                page = browser.post(action[1], typed, allow_redirects=False, timeout=5)
            step = urljoin(issuer, page.headers["Location"])
        assert visitor.get(step.removeprefix(BASE)).status_code == 303
        shown = visitor.get(PAGE).text
        assert "Grace Hopper" in shown
        assert '<span class="soft">write</span>' in shown
        # A code counts once, at the provider too; and the answer is of the browser that asked.
        assert visitor.get(step.removeprefix(BASE)).status_code == 401
        out = visitor.send(PAGE, to="/console/sign-out")
        link = re.search(r'href="([^"]+session/end[^"]+)"', visitor.get(out.location).text)
        assert link
        asked = browser.get(unescape(link[1]), timeout=5)
        assert "Do you want to sign-out" in asked.text
        created.extensions[EXTENSION].close()
