"""A browser without a screen: it keeps cookies and sends the forms that it is shown."""

import re
from html import unescape
from typing import Any, cast

from flask import Flask

from tests.support.api import Answer

BASE = "https://records.test"
HERE = {"Sec-Fetch-Site": "same-origin"}
_INPUT = re.compile(r'<input type="hidden" name="([^"]+)" value="([^"]*)">')


class Visitor:
    """Somebody with a browser."""

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

    def _open(self, path: str, **options: Any) -> Answer:
        return cast(Answer, self.client.open(path, base_url=BASE, buffered=True, **options))


def hidden(page: str, action: str) -> dict[str, str]:
    """Return the hidden fields of the form on a page that leads to `action`."""
    found = re.search(rf'<form[^>]*action="{re.escape(action)}"[^>]*>(.*?)</form>', page, re.DOTALL)
    assert found is not None, page
    return {name: unescape(value) for name, value in _INPUT.findall(found[1])}
