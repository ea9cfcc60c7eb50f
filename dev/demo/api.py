"""The public HTTP API as the holder of one key uses it."""

from typing import Any

import requests

from dev.demo.telling import Unmet

_TIMEOUT_SECONDS = 60


def anonymously(url: str) -> requests.Response:
    """GET a URL without a key; return any answer."""
    with requests.Session() as session:
        session.trust_env = False
        return session.get(url, timeout=_TIMEOUT_SECONDS)


class Api:
    """Sends requests with one API key; whatever is not answered well is `Unmet`."""

    def __init__(self, base_url: str, key: str) -> None:
        self._base_url = base_url
        self._session = requests.Session()
        # It runs on this machine: a proxy of the environment would only be in the way.
        self._session.trust_env = False
        self._session.headers["Authorization"] = f"Bearer {key}"

    def get(self, path: str, **query: Any) -> Any:
        """GET `path` and return the JSON of the answer."""
        return self._ask("GET", path, params=query).json()

    def download(self, path: str, media_type: str = "*/*") -> bytes:
        """GET `path` and return the bytes of the answer."""
        return self._ask("GET", path, headers={"Accept": media_type}).content

    def post(self, path: str, body: Any = None) -> Any:
        """POST `body` as JSON, or none, and return the JSON of the answer."""
        return self._ask("POST", path, json=body).json()

    def patch(self, path: str, body: Any) -> Any:
        """PATCH `path` and return the JSON of the answer."""
        return self._ask("PATCH", path, json=body).json()

    def delete(self, path: str) -> None:
        """DELETE `path`."""
        self._ask("DELETE", path)

    def _ask(self, method: str, path: str, **options: Any) -> requests.Response:
        try:
            answer = self._session.request(
                method, self._base_url + path, timeout=_TIMEOUT_SECONDS, **options
            )
        except requests.RequestException as error:
            raise Unmet(f"{method} {path} is answered ({type(error).__name__})") from error
        if not answer.ok:
            raise Unmet(
                f"{method} {path} is answered well (it was {answer.status_code}: {answer.text})"
            )
        return answer
