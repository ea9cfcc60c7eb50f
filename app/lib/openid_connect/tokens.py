"""What OpenID Connect says of requests and ID tokens, done by Authlib and joserfc.

Imported at the first sign-in: both take a tenth of a second and some memory.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote_plus

from authlib.oauth2.auth import ClientAuth
from authlib.oauth2.rfc6749.parameters import prepare_grant_uri, prepare_token_request
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet
from joserfc.jws import JWSRegistry

ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA", "Ed25519"),
)
"""Signatures of a key pair: an HMAC's key would be the client's secret, and `none` is no one's."""
LEEWAY_SECONDS = 60
_MOST_KEYS = 50


class NotValid(Exception):
    """The ID token proves nothing; the text names the check that failed, and nothing of it."""


class UnknownKey(Exception):
    """No key of the provider's has the token's `kid`: it may have new keys."""


def authorization_url(
    endpoint: str,
    client_id: str,
    redirect_uri: str,
    scopes: str,
    *,
    state: str,
    nonce: str,
    verifier: str,
    prompt: str | None,
) -> str:
    """Return where the browser asks for a code (PKCE with S256, RFC 7636)."""
    return str(
        prepare_grant_uri(
            endpoint,
            client_id,
            "code",
            redirect_uri,
            scopes,
            state,
            nonce=nonce,
            code_challenge=create_s256_code_challenge(verifier),
            code_challenge_method="S256",
            prompt=prompt,
        )
    )


def token_request(
    endpoint: str,
    credentials: tuple[str, str],
    methods: Sequence[str],
    *,
    code: str,
    redirect_uri: str,
    verifier: str,
) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of the request that exchanges a code, authenticated as the client.

    `methods` are those that the provider takes; `client_secret_basic` is the default by OpenID
    Connect Discovery.
    """
    body = prepare_token_request(
        "authorization_code", redirect_uri=redirect_uri, code=code, code_verifier=verifier
    )
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
    basic = not methods or "client_secret_basic" in methods
    # RFC 6749 section 2.3.1 encodes them as a form before Basic does; Authlib does not.
    auth = (
        ClientAuth(*map(quote_plus, credentials), "client_secret_basic")
        if basic
        else ClientAuth(*credentials, "client_secret_post")
    )
    _, headers, body = auth.prepare("POST", endpoint, headers, body)
    return body.encode(), headers


def claims(
    token: str,
    keys: Mapping[str, Any],
    *,
    algorithms: Sequence[str],
    issuer: str,
    client_id: str,
    nonce: str,
    access_token: str,
) -> dict[str, Any]:
    """Verify an ID token (OpenID Connect Core 3.1.3.7) and return its claims.

    Checks the signature by one of the provider's `keys` (a JWK Set) and `algorithms`, issuer,
    audience, authorized party, times, `nonce` and `at_hash`. Raises `NotValid`, and `UnknownKey`.
    """
    allowed = [each for each in ALGORITHMS if each in algorithms]
    if not allowed:
        # Of none the library makes its own choice, which has an HMAC.
        raise NotValid("no algorithm of a key pair")
    registry = JWSRegistry(algorithms=allowed, strict_check_header=False)
    try:
        usable = [each for each in keys["keys"] if each.get("use", "sig") == "sig"]
        found = jwt.decode(
            token, KeySet.import_key_set({"keys": usable[:_MOST_KEYS]}), registry=registry
        )
        told = CodeIDToken(
            found.claims,
            found.header,
            {
                "iss": {"essential": True, "value": issuer},
                "aud": {"essential": True, "value": client_id},
            },
            {"nonce": nonce, "client_id": client_id, "access_token": access_token},
        )
        told.validate(leeway=LEEWAY_SECONDS)
    except InvalidKeyIdError:
        raise UnknownKey from None
    except (JoseError, ValueError, TypeError, KeyError, AttributeError) as error:
        claim = getattr(error, "claim", None) or getattr(error, "claim_name", None)
        what = f"{type(error).__name__}{f' of {claim}' if isinstance(claim, str) else ''}"
        raise NotValid(what) from error
    return dict(told)
