"""Signatures of deliveries, and what the signature debugger tries."""

import base64
import hmac
from datetime import UTC, datetime
from typing import Any

import pytest
import standardwebhooks
import svix
from hypothesis import given
from hypothesis import strategies as st

from app.lib.crypto import webhook_signing as forms
from app.lib.crypto.webhook_signing import OURS, STANDARD, TIMESTAMP, Signer, new_secret

LIBRARIES: list[Any] = [standardwebhooks.Webhook, svix.Webhook]
BODY = b'{"id":"evt_1","type":"finding.created","data":{"title":"\xc3\xa9"}}'


def receive(library: Any, secret: str, body: bytes, headers: dict[str, str]) -> None:
    """Verify as a receiver would; each library raises its own error when it refuses."""
    library(secret).verify(body, headers)


def now() -> int:
    return int(datetime.now(UTC).timestamp())


def test_a_new_secret_is_whsec_and_the_base64_of_32_bytes() -> None:
    secret = new_secret()
    assert secret.startswith("whsec_")
    assert len(base64.b64decode(secret.removeprefix("whsec_"), validate=True)) == 32
    assert len({new_secret() for _ in range(100)}) == 100


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("changed", ["body", "id", "timestamp"])
def test_a_receiver_refuses_what_was_changed_on_the_way(library: Any, changed: str) -> None:
    secret = new_secret()
    headers = Signer([secret]).headers("evt_1", now(), BODY)
    body = BODY
    if changed == "body":
        body += b" "
    elif changed == "id":
        headers["webhook-id"] = "evt_2"
    else:
        headers["webhook-timestamp"] = str(now() - 10)
    with pytest.raises(Exception, match="signature"):
        receive(library, secret, body, headers)


def test_the_known_vector_of_standard_webhooks_is_met() -> None:
    signer = Signer(["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"])
    headers = signer.headers("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert headers["webhook-id"] == "msg_p5jXN8AQM9LWM0D4loKWxJek"
    assert headers["webhook-timestamp"] == "1614265330"


def test_our_own_header_carries_the_same_hmacs_in_hex_newest_first() -> None:
    secrets = [new_secret(), new_secret()]
    headers = Signer(secrets).headers("evt_1", 1700000000, BODY)
    expected = [
        hmac.new(
            base64.b64decode(secret.removeprefix("whsec_")), b"evt_1.1700000000." + BODY, "sha256"
        )
        for secret in secrets
    ]
    assert headers["x-service-signature-v2"] == (
        f"t=1700000000,v2={expected[0].hexdigest()},v2={expected[1].hexdigest()}"
    )
    assert headers["webhook-signature"] == " ".join(
        "v1," + base64.b64encode(each.digest()).decode() for each in expected
    )


@given(st.binary(max_size=300))
def test_any_bytes_are_signed_exactly_as_they_are_sent(body: bytes) -> None:
    key = bytes(32)
    signer = Signer(["whsec_" + base64.b64encode(key).decode()])
    signature = signer.headers("evt_1", 1, body)["webhook-signature"]
    wanted = hmac.new(key, b"evt_1.1." + body, "sha256").digest()
    assert base64.b64decode(signature.removeprefix("v1,")) == wanted


@pytest.mark.parametrize(
    "secrets",
    [
        [],
        [""],
        ["whsec_"],
        ["whsec_!!!hunter2"],
        ["whsec_hunter2hunter2x"],
        ["hunter2"],
        ["whsec_é"],
    ],
)
def test_a_bad_secret_is_refused_and_not_quoted(secrets: list[str]) -> None:
    with pytest.raises(ValueError, match="secret") as refusal:
        Signer(secrets)
    assert "hunter2" not in str(refusal.value)


def test_a_signer_does_not_show_its_keys() -> None:
    secret = new_secret()
    signer = Signer([secret])
    assert secret not in repr(signer)
    assert not hasattr(signer, "__dict__")


def test_few_timestamps_and_signatures_are_tried_however_many_are_pasted() -> None:
    signature = "0" * 64
    pasted = {
        TIMESTAMP: "1",
        STANDARD: f"v1,{signature} " * 900,
        OURS: ",".join([*(f"t={at}" for at in range(9_000)), *[f"v2={signature}"] * 900]),
    }

    assert forms.timestamps(pasted) == ["1", "0"]
    assert len(list(forms.signatures(pasted))) <= 100


def test_a_delivery_signed_with_as_many_secrets_as_there_may_be_is_tried_whole() -> None:
    each = "0" * 64
    pasted = {STANDARD: f"v1,{each} " * 20, OURS: f"t=1,{','.join([f'v2={each}'] * 20)}"}

    assert len(list(forms.signatures(pasted))) == 40


def test_a_deeply_nested_body_is_not_indented_to_hundreds_of_times_its_length() -> None:
    nested = "[" * 800 + "]" * 800
    body = f"[{','.join([nested] * 8)}]".encode()

    assert max(len(form.value) for form in forms.rewritten(body)) < 2 * len(body)


def test_a_body_of_usual_depth_is_indented() -> None:
    body = b'{"data":{"items":[1,2,3]}}'

    assert b'{\n  "data": {\n    "items"' in b"".join(form.value for form in forms.rewritten(body))
