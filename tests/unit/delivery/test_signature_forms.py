"""What the signature debugger tries: so much, whatever is pasted."""

from app.lib.crypto import webhook_signing as forms
from app.lib.crypto.webhook_signing import OURS, STANDARD, TIMESTAMP


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
