"""OpenID Connect, as a relying party: one provider, and the two ends of a sign-in there.

Every call has a deadline, and few threads wait for the provider at once: while it is away or slow,
sign-ins by it fail within seconds, and nothing else waits.
"""

import base64
import json
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any
from urllib.parse import quote_plus, urlencode

from app.lib.breaker import Breaker
from app.lib.outbound.addresses import EVERYWHERE
from app.lib.outbound.client import Outbound
from app.lib.text_sanitizer import one_line

ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA", "Ed25519"),
)
"""Signatures of a key pair: an HMAC's key would be the client's secret, and `none` is no one's."""
_LEEWAY_SECONDS = 60
_MOST_KEYS = 50
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


class UnknownKey(Exception):
    """No key of the provider's has the token's `kid`: it may have new keys."""


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

    def begin(self, asked: Asked) -> str:
        """Return the URL at which the browser signs in. Raises `ProviderAway`."""
        challenge = base64.urlsafe_b64encode(sha256(asked.verifier.encode()).digest())
        query = {
            "response_type": "code",
            "client_id": self._client.client_id,
            "redirect_uri": self._client.redirect_uri,
            "scope": self._client.scopes,
            "state": asked.state,
            "nonce": asked.nonce,
            # PKCE (RFC 7636).
            "code_challenge": challenge.rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        return _with_query(self._endpoint("authorization_endpoint"), query)

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
        told = self._verified(asked, granted)
        return self._identity(told, granted["access_token"])

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
        return _with_query(place, told)

    def close(self) -> None:
        """Close every connection."""
        self._outbound.close()

    def _exchange(self, asked: Asked, code: str) -> Mapping[str, Any]:
        """Exchange a code for tokens, authenticated by the client's secret."""
        client, endpoint = self._client, self._endpoint("token_endpoint")
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": client.redirect_uri,
            "code_verifier": asked.verifier,
        }
        headers = {
            "Content-Type": "application/x-www-form-urlencoded",
            "Accept": "application/json",
        }
        methods = _texts(self._metadata().get("token_endpoint_auth_methods_supported"))
        if not methods or "client_secret_basic" in methods:
            # RFC 6749 section 2.3.1 encodes both as a form before Basic does.
            pair = f"{quote_plus(client.client_id)}:{quote_plus(client.client_secret)}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        else:
            form |= {"client_id": client.client_id, "client_secret": client.client_secret}
        status, granted = self._call("POST", endpoint, urlencode(form).encode(), headers)
        if 400 <= status < 500:
            what = one_line(str(granted.get("error", status)), 100)
            hint = ": OIDC_CLIENT_SECRET is not the provider's" if what == "invalid_client" else ""
            raise NotSignedIn(f"The provider took its own code back ({what}{hint}).")
        if not all(isinstance(granted.get(name), str) for name in ("id_token", "access_token")):
            raise ProviderAway("It granted no ID token.")
        return granted

    def _verified(self, asked: Asked, granted: Mapping[str, Any]) -> dict[str, Any]:
        told = _texts(self._metadata().get("id_token_signing_alg_values_supported")) or ["RS256"]
        for fresh_seconds in (_FRESH_SECONDS, _KEYS_AGAIN_SECONDS):
            keys = self._asked_once("jwks", self._endpoint("jwks_uri"), fresh_seconds)
            try:
                return claims(granted, keys, self._client, asked.nonce, algorithms=told)
            except UnknownKey:
                continue
        raise NotSignedIn("The provider's ID token is signed by none of its keys.")

    def _identity(self, told: dict[str, Any], access_token: str) -> Identity:
        subject = told["sub"]
        if not (
            isinstance(subject, str) and 0 < len(subject) <= _SUBJECT and subject.isprintable()
        ):
            raise NotSignedIn("The provider's ID token names no subject.")
        if _claim(told, self._client.groups_claim) is None or "email" not in told:
            told = {**self._user_info(access_token, subject), **told}
        email = told.get("email")
        if not isinstance(email, str) or told.get("email_verified") is False:
            # Anyone may claim an address that the provider has not seen them use.
            email = None
        names = (told.get(key) for key in ("name", "preferred_username"))
        name = next((each for each in names if isinstance(each, str)), email or subject)
        groups = _texts(_claim(told, self._client.groups_claim))
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


def claims(
    granted: Mapping[str, Any],
    keys: Mapping[str, Any],
    client: Client,
    nonce: str,
    *,
    algorithms: Sequence[str],
) -> dict[str, Any]:
    """Verify the granted ID token (OpenID Connect Core 3.1.3.7) and return its claims.

    Checks the signature by one of the provider's `keys` (a JWK Set) and `algorithms`, issuer,
    audience, authorized party, times, `nonce` and `at_hash`. Raises `NotSignedIn`, whose text names
    the check that failed and nothing of the token, and `UnknownKey`.
    """
    # Both take a tenth of a second and some memory: the first sign-in's.
    from authlib.oidc.core import CodeIDToken  # noqa: PLC0415
    from joserfc import jwt  # noqa: PLC0415
    from joserfc.errors import InvalidKeyIdError, JoseError  # noqa: PLC0415
    from joserfc.jwk import KeySet  # noqa: PLC0415
    from joserfc.jws import JWSRegistry  # noqa: PLC0415

    allowed = [each for each in ALGORITHMS if each in algorithms]
    if not allowed:
        # Of none the library makes its own choice, which has an HMAC.
        raise NotSignedIn("The provider's ID token does not hold (no algorithm of a key pair).")
    try:
        usable = [each for each in keys["keys"] if each.get("use", "sig") == "sig"]
        found = jwt.decode(
            granted["id_token"],
            KeySet.import_key_set({"keys": usable[:_MOST_KEYS]}),
            registry=JWSRegistry(algorithms=allowed, strict_check_header=False),
        )
        wanted = {"iss": client.issuer, "aud": client.client_id}
        told = CodeIDToken(
            found.claims,
            found.header,
            {name: {"essential": True, "value": value} for name, value in wanted.items()},
            {
                "nonce": nonce,
                "client_id": client.client_id,
                "access_token": granted["access_token"],
            },
        )
        told.validate(leeway=_LEEWAY_SECONDS)
    except InvalidKeyIdError:
        raise UnknownKey from None
    except (JoseError, ValueError, TypeError, KeyError, AttributeError) as error:
        claim = getattr(error, "claim", None) or getattr(error, "claim_name", None)
        what = f"{type(error).__name__}{f' of {claim}' if isinstance(claim, str) else ''}"
        raise NotSignedIn(f"The provider's ID token does not hold ({what}).") from error
    return dict(told)


def _with_query(place: str, query: Mapping[str, str]) -> str:
    return f"{place}{'&' if '?' in place else '?'}{urlencode(query)}"


def _claim(told: Mapping[str, Any], name: str) -> Any:
    """Return a claim by its name, or by a path such as `realm_access.roles`; None without it."""
    if name in told:
        return told[name]
    found: Any = told
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
