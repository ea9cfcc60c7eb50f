"""A browser without a screen: it keeps cookies and sends the forms that it is shown."""

import re
from datetime import timedelta
from html import unescape
from typing import Any, cast

from flask import Flask

from app import ids
from app.api.http.auth import access_rule
from app.api.http.services import EXTENSION
from app.core.callers import Caller, Person, Role
from app.core.keys import groups
from app.core.keys.console_sessions import Token
from tests.support.callers.api import Answer
from tests.support.callers.matrix import World

BASE = "https://records.test"
HERE = {"Sec-Fetch-Site": "same-origin"}
_INPUT = re.compile(r'<input type="hidden" name="([^"]+)" value="([^"]*)">')


class Visitor:
    """A browser with its own cookies."""

    def __init__(self, app: Flask) -> None:
        self.client = app.test_client()

    def get(self, path: str, **headers: str) -> Answer:
        """Open a page; follows no redirect."""
        return self._open(path, headers=headers)

    def post(self, path: str, fields: dict[str, Any], **headers: str) -> Answer:
        """Send a form as a page of the console does."""
        return self._open(path, method="POST", data=fields, headers={**HERE, **headers})

    def sign_in(self, key: str, **fields: str) -> Answer:
        """Sign in with a key."""
        return self.post("/console/sign-in", {"key": key, **fields})

    def form(self, path: str, action: str | None = None) -> dict[str, str]:
        """Return the hidden fields of the form on a page that leads to `action`, or to its path."""
        page = self.get(path)
        assert page.status_code == 200, page.text
        return hidden(page.text, action or path)

    def send(
        self,
        page: str,
        typed: dict[str, Any] | None = None,
        *,
        to: str | None = None,
        **headers: str,
    ) -> Answer:
        """Send what is typed with the form on a page that leads to `to`, or to its path."""
        return self.post(to or page, {**self.form(page, to), **(typed or {})}, **headers)

    def _open(self, path: str, **options: Any) -> Answer:
        return cast(Answer, self.client.open(path, base_url=BASE, buffered=True, **options))


def signed_in(app: Flask, key: str) -> Visitor:
    """Return a browser that is signed in with a key."""
    visitor = Visitor(app)
    assert visitor.sign_in(key).status_code == 303
    return visitor


def said(page: str) -> str:
    """Return what a page says, without its tags."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page))


def rows(page: str) -> list[str]:
    """Return the names of the rows of a page's table, which are ids mostly."""
    return re.findall(r'<tr data-row="([^"]+)"', page)


def hidden(page: str, action: str) -> dict[str, str]:
    """Return the hidden fields of the form on a page that leads to `action`."""
    found = re.search(rf'<form[^>]*action="{re.escape(action)}"[^>]*>(.*?)</form>', page, re.DOTALL)
    assert found is not None, page
    return {name: unescape(value) for name, value in _INPUT.findall(found[1])}


def _signed_in_person(app: Flask, world: World) -> str:
    """Have a person sign in to the world's tenant, with a name that misleads; return their id."""
    entry = world.api.get("/v1/audit?limit=1").json["data"][0]
    tenant_id = ids.read("ten", entry["tenant_id"])
    person = Person("https://id.test", "mallory", "<b>Mallory\u202e", "mallory@example.com")
    caller = Caller(tenant_id, person.id, Role.READ, None, "request", person=person)
    with app.extensions[EXTENSION].database.transaction(tenant_id) as session:
        groups.change(session, tenant_id, {"<i>all\u202e": Role.READ})
        Token.new(tenant_id).begin(session, caller, timedelta(hours=1), ["<i>all\u202e"])
    return ids.text("usr", person.id)


def paths(app: Flask, world: World) -> list[str]:
    """Return every page that a session opens, with the world's ids, and where one signs in."""
    rules = [
        rule.rule
        for rule in app.url_map.iter_rules()
        if rule.rule.startswith("/console/") and "GET" in (rule.methods or ())
        if not any(part in rule.rule for part in ("/files/", "/all."))
        if (access := access_rule(app.view_functions[rule.endpoint])) and access.role
    ]
    known = world.ids() | {"number": "1", "person_id": _signed_in_person(app, world)}
    filled = [re.sub(r"<(\w+)>", lambda match: known[match[1]], rule) for rule in rules]
    return [*sorted(filled), "/console/sign-in", "/console/nothing"]
