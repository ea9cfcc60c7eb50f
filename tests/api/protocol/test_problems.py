"""Errors: one form, a page for each kind, and never a word that belongs inside."""

import re
import socket
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import unquote

import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import text

from app.api.http.auth import public
from app.api.http.services import EXTENSION, services
from app.database import cursor
from app.errors import PROBLEM_TYPES
from app.settings import Settings
from app.web import create_app
from tests.support.callers.api import Api, ApiOf, FreshTenant, application


@pytest.mark.parametrize("slug", sorted(PROBLEM_TYPES))
def test_every_problem_type_has_a_page_that_explains_it(client: FlaskClient, slug: str) -> None:
    page = client.get(f"/problems/{slug}")

    assert page.status_code == 200
    assert page.mimetype == "text/html"
    assert slug in page.text
    assert "<script" not in page.text


@pytest.mark.parametrize("slug", ["nothing", "..", "<b>", "not-found%00", "NOT-FOUND"])
def test_there_are_no_other_pages(client: FlaskClient, slug: str) -> None:
    assert client.get(f"/problems/{slug}").status_code == 404


def test_a_problem_says_what_rfc_9457_wants_and_links_to_its_page(
    api: ApiOf, client: FlaskClient
) -> None:
    refused = api().get("/v1/keys?limit=0")

    assert refused.content_type == "application/problem+json"
    assert refused.json.keys() == {"type", "title", "status", "detail", "request_id", "errors"}
    assert refused.json["status"] == 422
    assert refused.json["request_id"] == refused.headers["x-request-id"]
    path = refused.json["type"].removeprefix("https://records.test")
    assert client.get(path).status_code == 200


@pytest.mark.parametrize(
    ("path", "wrong", "allowed"),
    [
        ("/v1/keys", "PUT", {"GET", "HEAD", "OPTIONS", "POST"}),
        ("/v1/keys", "BREW", {"GET", "HEAD", "OPTIONS", "POST"}),
        ("/v1/keys/self", "DELETE", {"GET", "HEAD", "OPTIONS"}),
        ("/v1/findings/batch", "GET", {"OPTIONS", "POST"}),
    ],
)
def test_another_method_is_405_with_those_that_are_allowed(
    api: ApiOf, path: str, wrong: str, allowed: set[str]
) -> None:
    refused = api().request(wrong, path)
    assert (refused.status_code, refused.mimetype) == (405, "application/problem+json")
    assert set(refused.headers["Allow"].split(", ")) == allowed
    assert set(api().request("OPTIONS", path).headers["Allow"].split(", ")) == allowed


def test_an_unknown_path_is_a_problem(api: ApiOf) -> None:
    for path in (
        *("/v1/nothing", "/v1/keys/", "/v1//keys", "/v1", "/V1/keys", "/v1/keys/a/b"),
        *("//v1/agents", "///v1/agents", "/%2Fv1/agents", "//healthz", "//s/" + "a" * 43),
    ):
        answer = api().request("GET", "/", environ_overrides={"PATH_INFO": unquote(path)})
        assert (answer.status_code, answer.mimetype) == (404, "application/problem+json"), path


def test_head_answers_the_headers_of_get_alone(api: ApiOf) -> None:
    full, head = (api().request(method, "/v1/tenant/settings") for method in ("GET", "HEAD"))

    assert head.status_code == 200
    assert head.data == b""
    assert head.headers["Content-Length"] == full.headers["Content-Length"]


def test_a_long_url_is_414_and_long_headers_are_431(client: FlaskClient) -> None:
    assert client.get("/v1/keys?" + "a" * 9000).status_code == 414
    assert client.get("/v1/keys/" + "a" * 9000).status_code == 414
    assert client.get("/v1/keys", headers={"x-large": "a" * 17_000}).status_code == 431
    assert client.get("/healthz", headers={"x-large": "a" * 15_000}).status_code == 200


def test_a_plain_request_id_is_kept_and_any_other_is_a_new_one(client: FlaskClient) -> None:
    def got(sent: str, path: str = "/healthz") -> str:
        return client.get(path, headers={"x-request-id": sent}).headers["x-request-id"]

    for kept in ("a", "A-z_0.9", "x" * 128):
        assert got(kept) == kept
    strange = ("", "x" * 129, "a b", "a,b", "é", '"', "<script>", "a/b")
    new = [got(each) for each in strange]
    new += [got("", path) for path in ("/nothing", "/v1/keys", "/docs")]
    assert len({*new}) == len(new)
    assert all(re.fullmatch("[0-9a-f]{32}", each) for each in new)


# What is our fault


@pytest.fixture
def failing(settings: Settings) -> Iterator[FlaskClient]:
    """An application with routes that fail: with a secret in the words, and with the database."""
    broken = create_app(settings)

    @broken.get("/fails")
    @public
    def fails() -> str:
        raise RuntimeError("the secret is hunter2")

    @broken.get("/loses-its-connection")
    @public
    def loses() -> str:
        with services().database.across_tenants() as session:
            cursor(session).execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return "unreachable"

    @broken.get("/asks-wrongly")
    @public
    def asks() -> str:
        with services().database.across_tenants() as session:
            session.execute(text("SELECT 'secret'::integer"))
        return "unreachable"

    yield broken.test_client()
    broken.extensions[EXTENSION].close()


@pytest.mark.parametrize("path", ["/fails", "/asks-wrongly"])
def test_an_unexpected_error_is_500_and_keeps_its_words_inside(
    failing: FlaskClient, path: str
) -> None:
    answer = failing.get(path)

    assert (answer.status_code, answer.mimetype) == (500, "application/problem+json")
    for inside in ("secret", "hunter2", "Error", "Traceback", ".py", "SELECT", "sqlalche"):
        assert inside not in answer.text


def test_a_connection_that_breaks_is_503_and_the_next_request_gets_another(
    failing: FlaskClient,
) -> None:
    for _ in range(2):
        answer = failing.get("/loses-its-connection")
        assert answer.status_code == 503
        assert answer.headers["Retry-After"] == "2"
    assert failing.get("/readyz").status_code == 200


@pytest.fixture
def without_database(settings: Settings) -> Iterator[Flask]:
    """An application whose database refuses connections."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        url = f"postgresql+psycopg://nobody:hidden-password@127.0.0.1:{port}/nothing"
        with application(replace(settings, database_url=url)) as stranded:
            yield stranded


def test_without_the_database_every_route_says_when_to_come_back(
    without_database: Flask, tenant: FreshTenant
) -> None:
    answer = Api(without_database.test_client(), tenant.root_key).get("/v1/keys")

    assert answer.status_code == 503
    assert answer.headers["Retry-After"] == "2"
    assert answer.json["type"].endswith("/problems/unavailable")
    for inside in ("hidden-password", "psycopg", "refused", "127.0.0.1"):
        assert inside not in answer.text
