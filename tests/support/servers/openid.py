"""An OpenID provider of the tests' own, over HTTP: it signs in at once whom the test names."""

import base64
import json
import time
from contextlib import AbstractContextManager
from functools import cache
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote_plus, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey

from tests.support.servers.receivers import served

CLIENT_ID, CLIENT_SECRET = "console", "s3cret of the console"


class OpenIdProvider(ThreadingHTTPServer):
    """A provider with one person, `claims`; what it does wrong, the test sets."""

    daemon_threads = True

    def __init__(self) -> None:
        """Listen on a free port of the loopback."""
        super().__init__(("127.0.0.1", 0), _Handler)
        self.issuer = f"http://127.0.0.1:{self.server_address[1]}"
        self.key = _first_key()
        self.published = [self.key]
        self.claims: dict[str, Any] = {
            "sub": "ada",
            "name": "Ada Lovelace",
            "email": "ada@example.com",
            "groups": ["engineers"],
        }
        self.told_at_userinfo: tuple[str, ...] = ()
        self.userinfo_subject: str | None = None
        self.metadata: dict[str, Any] = {}
        self.token: dict[str, Any] = {}
        self.header: dict[str, Any] = {}
        self.raw_token: str | None = None
        self.refusal: str | None = None
        self.status: int | None = None
        self.asked: list[str] = []
        self._codes: dict[str, dict[str, str]] = {}

    def described(self) -> dict[str, Any]:
        """Return the metadata (OpenID Connect Discovery 3)."""
        places = ("authorization", "token", "userinfo", "end_session")
        return {
            "issuer": self.issuer,
            "jwks_uri": f"{self.issuer}/jwks",
            **{f"{each}_endpoint": f"{self.issuer}/{each}" for each in places},
            "id_token_signing_alg_values_supported": ["RS256"],
            **self.metadata,
        }

    def authorize(self, query: dict[str, str]) -> str:
        """Return where the browser goes back to: with a code, or with an error."""
        told = {"state": query["state"], "iss": self.issuer}
        if self.refusal is not None:
            return f"{query['redirect_uri']}?{urlencode({**told, 'error': self.refusal})}"
        code = f"code-{len(self._codes)}"
        self._codes[code] = query
        return f"{query['redirect_uri']}?{urlencode({**told, 'code': code})}"

    def exchange(self, form: dict[str, str], authorization: str) -> tuple[int, dict[str, Any]]:
        """Exchange a code once, for its client and its verifier alone (RFC 7636)."""
        known = ":".join(map(quote_plus, (CLIENT_ID, CLIENT_SECRET)))
        basic = base64.b64encode(known.encode()).decode()
        if authorization != f"Basic {basic}":
            return 401, {"error": "invalid_client"}
        query = self._codes.pop(form["code"], None)
        digest = sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if query is None or query["code_challenge"] != challenge:
            return 400, {"error": "invalid_grant"}
        now = int(time.time())
        claims = {
            name: self.claims[name] for name in self.claims.keys() - set(self.told_at_userinfo)
        }
        claims |= {"iss": self.issuer, "aud": CLIENT_ID, "iat": now, "exp": now + 300}
        claims |= {"nonce": query["nonce"], **self.token}
        claims = {name: value for name, value in claims.items() if value is not None}
        header = {"alg": "RS256", "kid": self.key.kid, **self.header}
        signed = self.raw_token or jwt.encode(header, claims, self.key)
        return 200, {"access_token": "access", "token_type": "Bearer", "id_token": signed}


def new_key(name: str) -> RSAKey:
    """Return a key pair with an id."""
    return RSAKey.generate_key(2048, {"kid": name, "use": "sig", "alg": "RS256"})


@cache
def _first_key() -> RSAKey:
    return new_key("first")


def serving() -> AbstractContextManager[OpenIdProvider]:
    """Run a provider for the length of a `with`."""
    return served(OpenIdProvider())


class _Handler(BaseHTTPRequestHandler):
    server: OpenIdProvider

    def do_GET(self) -> None:
        """Answer metadata, keys and claims, and sign in."""
        here, parts = self.server, urlsplit(self.path)
        here.asked.append(parts.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        match parts.path:
            case "/.well-known/openid-configuration":
                self._answer(200, here.described())
            case "/jwks":
                self._answer(200, {**KeySet(list(here.published)).as_dict(private=False)})
            case "/userinfo":
                subject = here.userinfo_subject or here.claims["sub"]
                self._answer(200, {**here.claims, "sub": subject})
            case "/authorization":
                self.send_response(303)
                self.send_header("Location", here.authorize(query))
                self.send_header("Content-Length", "0")
                self.end_headers()

    def do_POST(self) -> None:
        """Exchange a code."""
        self.server.asked.append(self.path)
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        form = {name: values[0] for name, values in parse_qs(body).items()}
        self._answer(*self.server.exchange(form, self.headers.get("Authorization", "")))

    def _answer(self, status: int, told: dict[str, Any]) -> None:
        body = json.dumps(told).encode()
        self.send_response(self.server.status or status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""
