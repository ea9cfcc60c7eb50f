"""The HTTP API as a key's holder calls it, and applications with settings of their own."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID

from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from app.api.http.services import EXTENSION
from app.settings import Settings
from app.web import create_app, open_services


@dataclass(frozen=True)
class FreshTenant:
    """A tenant of one test, with the text of its root admin key."""

    id: UUID
    root_key: str


class Answer(TestResponse):
    """An answer whose JSON is there: what a test expects of it, it asserts."""

    json: Any


class Api:
    """The HTTP API as one key's holder sees it."""

    def __init__(self, client: FlaskClient, key: str | None) -> None:
        self._client = client
        self._key = key

    @property
    def application(self) -> Flask:
        """The application that is asked, for a browser's visits."""
        return self._client.application

    def request(self, method: str, path: str, **options: Any) -> Answer:
        """Send one request; extra keyword arguments are the test client's."""
        headers = dict(options.pop("headers", {}))
        if self._key is not None:
            headers.setdefault("Authorization", f"Bearer {self._key}")
        # As a server does: the answer is read to its end, and the application told that it was.
        options.setdefault("buffered", True)
        return cast(Answer, self._client.open(path, method=method, headers=headers, **options))

    def get(self, path: str, **options: Any) -> Answer:
        """GET `path`."""
        return self.request("GET", path, **options)

    def readyz(self) -> Answer:
        """GET /readyz as the next tick makes it."""
        self._client.application.extensions[EXTENSION].readiness.compute()
        return self.get("/readyz")

    def post(self, path: str, json: Any = None, **options: Any) -> Answer:
        """POST `json` to `path`, or no body."""
        if json is not None:
            options["json"] = json
        return self.request("POST", path, **options)

    def found(self, path: str) -> dict[str, Any]:
        """GET `path`; return the JSON of a good answer."""
        answer = self.get(path)
        assert answer.status_code == 200, answer.json
        return dict(answer.json)

    def rows(self, path: str) -> list[dict[str, Any]]:
        """Return the rows of a page of a list."""
        return list(self.found(path)["data"])

    def made(self, path: str, json: Any = None, *, status: int = 201) -> dict[str, Any]:
        """POST `json` to `path`; return the JSON of an answer of this status."""
        answer = self.post(path, json)
        assert answer.status_code == status, answer.json
        return dict(answer.json)

    def patch(self, path: str, json: Any, **options: Any) -> Answer:
        """PATCH `path` with `json`."""
        return self.request("PATCH", path, json=json, **options)

    def delete(self, path: str, **options: Any) -> Answer:
        """DELETE `path`."""
        return self.request("DELETE", path, **options)


ApiOf = Callable[..., Api]
Mint = Callable[..., str]


# Applications without services, by the settings that their routes know: routes take 0.2 s to make.
_idle: defaultdict[object, list[Flask]] = defaultdict(list)


@contextmanager
def application(settings: Settings) -> Iterator[Flask]:
    """Open a web application with these settings; its routes may have served others before."""
    idle = _idle[settings.base_url, settings.blob_url, settings.web.body_seconds]
    if idle:
        app = idle.pop()
        open_services(app, settings)
    else:
        app = create_app(settings)
    try:
        yield app
    finally:
        app.extensions[EXTENSION].close()
        idle.append(app)


@contextmanager
def serving(settings: Settings) -> Iterator[ApiOf]:
    """Open such an application; yields a maker of callers: `api()` has no key."""
    with application(settings) as app:
        yield lambda key=None: Api(app.test_client(), key)
