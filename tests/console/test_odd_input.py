"""Queries, forms and origins that no browser sends: refused, and never an error of ours."""

import re
from collections.abc import Callable

import pytest
from flask import Flask

from tests.support.callers.api import Api, FreshTenant
from tests.support.callers.console import BASE, HERE, Visitor, paths
from tests.support.callers.matrix import World
from tests.support.callers.sending import make_webhook

FORM = "application/x-www-form-urlencoded"


@pytest.mark.parametrize(
    "query",
    [
        "_anchor=x&_method=x&_scheme=x&endpoint=x",
        "limit=1&limit=2",
        "=x&q=%FF&%00=x",
    ],
)
def test_no_query_breaks_a_page(
    admin: Visitor, app: Flask, api: Callable[..., Api], query: str
) -> None:
    for path in paths(app, World(api())):
        assert admin.get(f"{path}?{query}").status_code < 500, path


@pytest.mark.parametrize("odd", ["x", "x%0D", "%0D%0Ax", "x%C2%85"])
def test_no_id_that_is_none_breaks_a_page(admin: Visitor, app: Flask, odd: str) -> None:
    form = admin.form("/console/keys", "/console/sign-out")
    for rule in app.url_map.iter_rules():
        if rule.endpoint.startswith("console.") and "_id>" in rule.rule:
            path = re.sub(r"<[^>]*>", odd, rule.rule)
            assert admin.get(path).status_code < 500, path
            assert admin.post(path, form).status_code < 500, path


def test_no_date_that_there_is_not_breaks_a_page(admin: Visitor, api: Callable[..., Api]) -> None:
    name = "until 2026-02-31T00:00:00.000000Z"
    webhook = make_webhook(api(), description=name)
    job = api().post(f"/v1/webhooks/{webhook['id']}/replay", {"status": ["failed"]})
    assert job.status_code == 202, job.json
    page = admin.get(f"/console/replays/{job.json['id']}")
    assert (page.status_code, name in page.text) == (200, True)


def test_no_link_fills_in_a_form_that_changes_something(
    admin: Visitor, api: Callable[..., Api]
) -> None:
    webhook = make_webhook(api())
    for path, name in (
        ("/console/keys", "name"),
        ("/console/webhooks/new", "url"),
        (f"/console/webhooks/{webhook['id']}", "url"),
        ("/console/settings", "digest_email"),
        ("/console/keys?limit=x", "name"),
    ):
        mark = "&" if "?" in path else "?"
        page = admin.get(f"{path}{mark}{name}=https%3A%2F%2Fevil.test").text
        assert 'value="https://evil.test"' not in page, path


@pytest.mark.parametrize(
    "form",
    ["=x", "_token={0}&_key=k&name=n&role=read&pin=x&pin.agent_id=y", "x=1&x=2", "_token=%FF"],
)
def test_no_form_breaks_a_page(admin: Visitor, form: str) -> None:
    token = admin.form("/console/keys", "/console/sign-out")["_token"]
    answer = admin.client.post(
        "/console/keys",
        base_url=BASE,
        headers=HERE,
        data=form.format(token),
        content_type=FORM,
    )
    assert answer.status_code in (409, 422)


@pytest.mark.parametrize(
    "headers",
    ['{"webhook-id": "\\ud800"}', '{"a": 1e999}', '{"a": NaN}', "[" * 20_000, '{"a":' * 20_000],
)
def test_no_pasted_headers_break_the_debugger_of_signatures(
    admin: Visitor, api: Callable[..., Api], headers: str
) -> None:
    path = f"/console/webhooks/{make_webhook(api())['id']}/signature"
    answer = admin.send(path, {"headers": headers, "body": "{}"})
    # What is no JSON is taken for lines of headers.
    assert answer.status_code == (200 if "NaN" in headers else 422)


@pytest.mark.parametrize("kept", ["=x", "a=%FF", "&".join(["a=1"] * 1_101)])
def test_a_kept_form_that_is_none_starts_no_session(
    visitor: Visitor, tenant: FreshTenant, kept: str
) -> None:
    answer = visitor.sign_in(tenant.root_key, form="1", kept=kept)
    assert answer.status_code == (200 if kept == "=x" else 422)
    assert ("Set-Cookie" in answer.headers) == (kept == "=x")


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (BASE, 401),
        ("https://evil.test", 403),
        ("null", 403),
        ("http://[", 403),
        ("x://records.test", 403),
        ("", 403),
    ],
)
def test_without_fetch_metadata_the_origin_says_whose_form_it_is(
    visitor: Visitor, origin: str, status: int
) -> None:
    answer = visitor.client.post(
        "/console/sign-in", base_url=BASE, data={"key": "x"}, headers={"Origin": origin}
    )
    assert answer.status_code == status
