"""Deliveries are verified: genuine ones in each framework of docs/sdk.md, and no other."""

import asyncio
import base64
import json
import re
import sys
import time
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import httpx2
import pytest
from record_service import RecordsError, webhooks
from record_service.webhooks import (
    HeadersMissing,
    NotVerified,
    SecretMalformed,
    SignatureWrong,
    TooOld,
    verify,
)
from standardwebhooks.webhooks import Webhook

from app.lib.crypto.webhook_signing import Signer, new_secret
from tests.support.programs.documents import block

NOW = 1_800_000_000
EVENT = "evt_019a0b7c4c1d7e2f9a3b4c5d6e7f8091"
BODY = '{"data":{"title":"Grüße"},"id":"evt_1","timestamp":"t","type":"finding.created"}'.encode()
OLD, NEW, OTHER = (new_secret() for _ in range(3))


def delivery(*secrets: str, at: int = NOW, body: bytes = BODY) -> dict[str, str]:
    """Return the headers of a delivery as the service signs it."""
    return Signer(secrets).headers(EVENT, at, body)


def without(headers: Mapping[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name not in names}


STANDARD, OURS = "webhook-signature", "x-service-signature-v2"


@pytest.mark.parametrize("left_out", [(), (STANDARD,), (OURS,)])
def test_either_signature_of_any_secret_given_will_do(left_out: tuple[str, ...]) -> None:
    rotating = without(delivery(NEW, OLD), *left_out)
    for secrets in (NEW, OLD, [OTHER, OLD], (NEW, OTHER), f" {NEW}\n"):
        assert verify(secrets, rotating, BODY, now=NOW) == json.loads(BODY)
    with pytest.raises(SignatureWrong):
        verify([OTHER], rotating, BODY, now=NOW)


def test_headers_are_read_as_frameworks_have_them() -> None:
    signed = delivery(NEW)
    for headers in (
        {name.upper(): value for name, value in signed.items()},
        {f"HTTP_{name.upper().replace('-', '_')}": each for name, each in signed.items()},
        list(signed.items()),
        {**signed, "wsgi.input": object()},
    ):
        assert verify(NEW, headers, BODY, now=NOW)["type"] == "finding.created"  # type: ignore[arg-type]  # WSGI's has other values


@pytest.mark.parametrize(("away", "good"), [(300, True), (-300, True), (301, False), (-301, False)])
def test_only_what_is_of_now_is_taken(away: int, good: bool) -> None:
    signed = delivery(NEW, at=NOW + away)
    if good:
        verify(NEW, signed, BODY, now=NOW)
        return
    with pytest.raises(TooOld):
        verify(NEW, signed, BODY, now=NOW)
    verify(NEW, signed, BODY, now=NOW, tolerance=400)


Changed = Callable[[dict[str, str]], dict[str, str]]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda h: without(h, "webhook-id"), HeadersMissing),
        (lambda h: without(h, "webhook-timestamp"), HeadersMissing),
        (lambda h: without(h, STANDARD, OURS), HeadersMissing),
        (lambda h: h | {"webhook-timestamp": "١٢"}, HeadersMissing),
        (lambda h: h | {"webhook-timestamp": f"{NOW}.0"}, HeadersMissing),
        (lambda h: h | {"Webhook-Id": EVENT}, HeadersMissing),
        (lambda h: h | {"webhook-id": "evt_other"}, SignatureWrong),
        (lambda h: h | {"webhook-timestamp": str(NOW + 1)}, SignatureWrong),
        (lambda h: h | {STANDARD: "v1,AAAA v1, v1,é", OURS: "t=,v2=zz,=,"}, SignatureWrong),
        # An old request with the time of another beside it.
        (lambda h: {**without(h, STANDARD), "webhook-timestamp": str(NOW + 1)}, HeadersMissing),
        (
            lambda h: {**without(h, OURS), STANDARD: h[STANDARD].replace("v1,", "v2,")},
            HeadersMissing,
        ),
    ],
)
def test_what_is_no_delivery_is_refused_for_its_reason(
    change: Changed, error: type[NotVerified]
) -> None:
    with pytest.raises(error) as raised:
        verify(NEW, change(delivery(NEW)), BODY, now=NOW)
    assert NEW[6:] not in str(raised.value)


def test_no_byte_may_change() -> None:
    signed = delivery(NEW)
    for place in range(len(BODY)):
        changed = bytearray(BODY)
        changed[place] ^= 1
        with pytest.raises(SignatureWrong):
            verify(NEW, signed, bytes(changed), now=NOW)


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_é", "c2VjcmV0c2VjcmV0", []])
def test_a_secret_that_is_none_is_a_mistake_of_the_receiver_s(secret: Any) -> None:
    with pytest.raises(SecretMalformed):
        verify(secret, delivery(NEW), BODY, now=NOW)
    with pytest.raises(TypeError):
        verify(NEW, delivery(NEW), BODY.decode(), now=NOW)  # type: ignore[arg-type]  # the mistake
    assert not issubclass(SecretMalformed, NotVerified)
    assert issubclass(NotVerified, RecordsError)


def test_what_it_signs_others_verify() -> None:
    secret = webhooks.PREFIX + base64.b64encode(b"k" * 32).decode()
    signed = webhooks.sign(secret, EVENT, NOW, BODY)
    assert signed == Signer([secret]).headers(EVENT, NOW, BODY)
    with pytest.raises(Exception, match=r"too (old|new)"):
        Webhook(secret).verify(BODY, signed)


def snippet(name: str) -> ModuleType:
    """Import a snippet of docs/sdk.md by the file name in its first line."""
    module = ModuleType(name.removesuffix(".py"))
    # FastAPI reads annotations in a function's module.
    sys.modules[module.__name__] = module
    exec(compile(block("docs/sdk.md", "python", f"# {name}\n"), name, "exec"), module.__dict__)
    return module


def flask(headers: dict[str, str], body: bytes) -> int:
    app = snippet("flask_app.py").app
    status: int = app.test_client().post("/hooks", data=body, headers=headers).status_code
    return status


def fastapi(headers: dict[str, str], body: bytes) -> int:
    async def post() -> int:
        transport = httpx2.ASGITransport(app=snippet("fastapi_app.py").app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://receiver") as client:
            return (await client.post("/hooks", content=body, headers=headers)).status_code

    return asyncio.run(post())


def django_(headers: dict[str, str], body: bytes) -> int:
    # It takes long to import, in every process that collects this.
    import django
    from django.conf import settings as django_settings
    from django.test import RequestFactory

    if not django_settings.configured:
        django_settings.configure(SECRET_KEY="no secret", ALLOWED_HOSTS=["*"])
        django.setup(set_prefix=False)
    request = RequestFactory().post("/hooks", body, "application/json", headers=headers)
    status: int = snippet("django_views.py").hook(request).status_code
    return status


@pytest.mark.parametrize("post", [flask, fastapi, django_])
def test_each_framework_s_example_takes_genuine_deliveries_alone(
    post: Callable[[dict[str, str], bytes], int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("WEBHOOK_SECRETS", f"{NEW} {OLD}")
    signed = Signer([OLD]).headers(EVENT, int(time.time()), BODY)
    assert post(signed, BODY) == 204
    assert re.search("finding.created .*Grüße", capsys.readouterr().out)
    assert post(signed, BODY + b" ") == 400
    assert post(delivery(OLD), BODY) == 400
    assert post({}, BODY) == 400
    assert "finding.created" not in capsys.readouterr().out


def test_what_is_no_text_and_no_number_is_refused_by_its_kind() -> None:
    signed = delivery(NEW)
    with pytest.raises(SignatureWrong):
        verify(NEW, {**signed, "webhook-id": "\udc80"}, BODY, now=NOW)
    with pytest.raises(SecretMalformed):
        verify(NEW.encode(), signed, BODY, now=NOW)  # type: ignore[arg-type]  # as from a file
    with pytest.raises(TooOld):
        verify(NEW, delivery(NEW, at=5), BODY, now=NOW, tolerance=float("nan"))
