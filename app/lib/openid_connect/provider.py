"""One OpenID provider: its metadata and keys (cached), and the two ends of a sign-in.

Every call has a deadline, and few threads wait for the provider at once: while it is away or slow,
sign-ins by it fail within seconds, and nothing else waits.
"""

import json
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from app.lib.breaker import Breaker
from app.lib.outbound.addresses import EVERYWHERE
from app.lib.outbound.client import Outbound
from app.lib.text_sanitizer import one_line

if TYPE_CHECKING:
    from types import ModuleType

_CALL_SECONDS = 5.0
_MOST_BYTES = 512 * 1024
# Metadata and keys are asked for again after an hour, or by a token with an unknown key; then at
# most once a minute, since anyone may send tokens.
_FRESH_SECONDS = 3600.0
_KEYS_AGAIN_SECONDS = 60.0
_AWAY_SECONDS = 5.0
_MOST_AT_ONCE = 4
# OpenID Connect Core section 2: `sub` has at most 255 ASCII characters.
_SUBJECT, _NAME, _EMAIL, _GROUP = 255, 200, 254, 256
_MOST_GROUPS = 1000


class ProviderAway(Exception):
    """The provider was not reached, or its answer is of no use; the text says why."""


class NotSignedIn(Exception):
    """The provider, or a check of its answer, refused the sign-in; the text says why."""


@dataclass(frozen=True)
class Client:
    """This service as the provider knows it, and the claim that names a person's groups."""

    issuer: str
    client_id: str
    client_secret: str = field(repr=False)
    redirect_uri: str
    scopes: str
    groups_claim: str


@dataclass(frozen=True)
class Asked:
    """A sign-in that was begun: the browser keeps it, sealed, until the provider has answered."""

    state: str
    nonce: str
    verifier: str

    @classmethod
    def new(cls) -> "Asked":
        """Return fresh secrets: 256 bits each."""
        return cls(*(secrets.token_urlsafe(32) for _ in range(3)))


@dataclass(frozen=True)
class Identity:
    """Whom the provider signed in. `issuer` and `subject` name the person; the rest are labels."""

    issuer: str
    subject: str
    email: str | None
    name: str
    groups: Sequence[str]


class Provider:
    """The provider at one issuer; shared by the threads of a process. Connects nothing yet."""

    def __init__(self, client: Client, authorities: str | None = None) -> None:
        """Take the client, and roots (PEM) to trust in place of the public ones."""
        self._client = client
        self._outbound = Outbound(EVERYWHERE, authorities=authorities)
        self._breaker = Breaker(_AWAY_SECONDS)
        self._places = threading.BoundedSemaphore(_MOST_AT_ONCE)
        self._known: dict[str, tuple[float, Mapping[str, Any]]] = {}

    def begin(self, asked: Asked, *, prompt: str | None = None) -> str:
        """Return the URL at which the browser signs in. Raises `ProviderAway`."""
        client = self._client
        return str(
            _tokens().authorization_url(
                self._endpoint("authorization_endpoint"),
                client.client_id,
                client.redirect_uri,
                client.scopes,
                state=asked.state,
                nonce=asked.nonce,
                verifier=asked.verifier,
                prompt=prompt,
            )
        )

    def finish(self, asked: Asked, answered: Mapping[str, str]) -> Identity:
        """Return who signed in, from the query that the provider sent the browser back with.

        Raises `NotSignedIn`, and `ProviderAway`.
        """
        if not secrets.compare_digest(answered.get("state", "").encode(), asked.state.encode()):
            raise NotSignedIn("The answer belongs to another sign-in.")
        # RFC 9207: a code of another provider would be sent to this one.
        if answered.get("iss", self._client.issuer) != self._client.issuer:
            raise NotSignedIn("The answer came from another provider.")
        if "error" in answered:
            what = one_line(answered["error"], 100)
            raise NotSignedIn(f"The provider refused the sign-in ({what}).")
        if not answered.get("code"):
            raise NotSignedIn("The provider's answer has no code.")
        granted = self._exchange(asked, answered["code"])
        claims = self._verified(asked, granted)
        return self._identity(claims, granted["access_token"])

    def end_session_url(self, back: str) -> str | None:
        """Return where the person signs out of the provider as well, if it offers that.

        That is RP-Initiated Logout; `back` is where it returns to. Nothing is asked for it: None
        too where the provider was not reached before.
        """
        known = self._known.get("metadata")
        place = None if known is None else known[1].get("end_session_endpoint")
        if not isinstance(place, str):
            return None
        told = {"client_id": self._client.client_id, "post_logout_redirect_uri": back}
        return f"{place}{'&' if '?' in place else '?'}{urlencode(told)}"

    def close(self) -> None:
        """Close every connection."""
        self._outbound.close()

    def _exchange(self, asked: Asked, code: str) -> Mapping[str, Any]:
        client, endpoint = self._client, self._endpoint("token_endpoint")
        body, headers = _tokens().token_request(
            endpoint,
            (client.client_id, client.client_secret),
            _texts(self._metadata().get("token_endpoint_auth_methods_supported")),
            code=code,
            redirect_uri=client.redirect_uri,
            verifier=asked.verifier,
        )
        status, granted = self._call("POST", endpoint, body, headers)
        if 400 <= status < 500:
            what = one_line(str(granted.get("error", status)), 100)
            hint = ": OIDC_CLIENT_SECRET is not the provider's" if what == "invalid_client" else ""
            raise NotSignedIn(f"The provider took its own code back ({what}{hint}).")
        if not all(isinstance(granted.get(name), str) for name in ("id_token", "access_token")):
            raise ProviderAway("It granted no ID token.")
        return granted

    def _verified(self, asked: Asked, granted: Mapping[str, Any]) -> dict[str, Any]:
        tokens = _tokens()
        told = _texts(self._metadata().get("id_token_signing_alg_values_supported")) or ["RS256"]
        for fresh_seconds in (_FRESH_SECONDS, _KEYS_AGAIN_SECONDS):
            keys = self._asked_once("jwks", self._endpoint("jwks_uri"), fresh_seconds)
            try:
                found: dict[str, Any] = tokens.claims(
                    granted["id_token"],
                    keys,
                    algorithms=told,
                    issuer=self._client.issuer,
                    client_id=self._client.client_id,
                    nonce=asked.nonce,
                    access_token=granted["access_token"],
                )
            except tokens.UnknownKey:
                continue
            except tokens.NotValid as error:
                raise NotSignedIn(f"The provider's ID token does not hold ({error}).") from error
            return found
        raise NotSignedIn("The provider's ID token is signed by none of its keys.")

    def _identity(self, claims: dict[str, Any], access_token: str) -> Identity:
        subject = claims["sub"]
        if not (
            isinstance(subject, str) and 0 < len(subject) <= _SUBJECT and subject.isprintable()
        ):
            raise NotSignedIn("The provider's ID token names no subject.")
        if _claim(claims, self._client.groups_claim) is None or "email" not in claims:
            claims = {**self._user_info(access_token, subject), **claims}
        email = claims.get("email")
        if not isinstance(email, str) or claims.get("email_verified") is False:
            # Anyone may claim an address that the provider has not seen them use.
            email = None
        name = next(
            (
                claims[key]
                for key in ("name", "preferred_username")
                if isinstance(claims.get(key), str)
            ),
            email or subject,
        )
        groups = _texts(_claim(claims, self._client.groups_claim))
        return Identity(
            self._client.issuer,
            subject,
            email and one_line(email, _EMAIL),
            one_line(name, _NAME),
            [each for each in groups if len(each) <= _GROUP and each.isprintable()][:_MOST_GROUPS],
        )

    def _user_info(self, access_token: str, subject: str) -> dict[str, Any]:
        """Return the claims that it tells at its userinfo endpoint; none where it has none."""
        place = self._metadata().get("userinfo_endpoint")
        if not isinstance(place, str):
            return {}
        sent = {"Authorization": f"Bearer {access_token}", "Accept": "application/json"}
        status, told = self._call("GET", place, b"", sent)
        if status != 200 or told.get("sub") != subject:
            # OpenID Connect Core 5.3.2: of another subject nothing may be used.
            raise NotSignedIn(f"The provider's userinfo is not of this person ({status}).")
        return dict(told)

    def _endpoint(self, name: str) -> str:
        place = self._metadata().get(name)
        if not isinstance(place, str):
            raise ProviderAway(f"Its metadata has no {name}.")
        return place

    def _metadata(self) -> Mapping[str, Any]:
        place = f"{self._client.issuer.rstrip('/')}/.well-known/openid-configuration"
        found = self._asked_once("metadata", place, _FRESH_SECONDS)
        if found.get("issuer") != self._client.issuer:
            # OpenID Connect Discovery 4.3: it must be the same text.
            raise ProviderAway("It calls itself by another issuer than OIDC_ISSUER.")
        return found

    def _asked_once(self, name: str, place: str, fresh_seconds: float) -> Mapping[str, Any]:
        """Return a document of the provider's that is no older than so many seconds."""
        known = self._known.get(name)
        if known is not None and time.monotonic() - known[0] < fresh_seconds:
            return known[1]
        status, found = self._call("GET", place, b"", {"Accept": "application/json"})
        if status != 200:
            raise ProviderAway(f"It answered {status} at {place}.")
        self._known[name] = (time.monotonic(), found)
        return found

    def _call(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, Mapping[str, Any]]:
        """Ask the provider; return the status and a JSON object. Raises `ProviderAway`."""
        if not self._places.acquire(blocking=False):
            raise ProviderAway("Too many sign-ins wait for it.")
        try:
            if not self._breaker.admits():
                raise ProviderAway("It did not answer a moment ago.")
            answer = self._outbound.send(
                url,
                body,
                headers,
                method=method,
                deadline_seconds=_CALL_SECONDS,
                kept_bytes=_MOST_BYTES,
                body_seconds=_CALL_SECONDS,
            )
            if answer.status is None or answer.status >= 500:
                self._breaker.failed()
                raise ProviderAway(answer.error or f"It answered {answer.status}.")
            self._breaker.succeeded()
        finally:
            self._places.release()
        try:
            found = json.loads(answer.body)
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict):
            return answer.status, found
        if answer.status >= 400:
            return answer.status, {}
        raise ProviderAway("Its answer is no JSON object.")


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    """Return a claim by its name, or by a path such as `realm_access.roles`; None without it."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _tokens() -> "ModuleType":
    from app.lib.openid_connect import tokens  # noqa: PLC0415  # Authlib: see its docstring

    return tokens
