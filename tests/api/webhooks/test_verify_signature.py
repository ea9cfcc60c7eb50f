"""The signature debugger: each mistake that receivers make is named, and nothing pasted is kept."""

import base64
import hmac
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, text

from app.lib.crypto.webhook_signing import Signer, decode
from tests.support.callers.api import ApiOf
from tests.support.callers.making import NOBODY, pointers, refused
from tests.support.callers.sending import history, make_findings, make_webhook

Sent = tuple[dict[str, Any], dict[str, str], bytes]


@pytest.fixture
def sent(api: ApiOf) -> Sent:
    """Return a webhook, and headers and body of a delivery to it."""
    webhook = make_webhook(api())
    make_findings(api(), 1)
    (delivery,) = history(api(), webhook)
    body = event_body(api, delivery["event_id"])
    return webhook, signed(webhook["secret"], delivery["event_id"], body), body


def dumps(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def event_body(api: ApiOf, event_id: str) -> bytes:
    payload = api().get(f"/v1/events/{event_id}").json["payload"]
    return json.dumps(payload, separators=(",", ":"), sort_keys=True).encode()


def signed(secret: str, event_id: str, body: bytes, age: int = 0) -> dict[str, str]:
    at = int((datetime.now(UTC) - timedelta(seconds=age)).timestamp())
    return Signer([secret]).headers(event_id, at, body)


def diagnose(api: ApiOf, webhook: dict[str, Any], headers: Any, body: bytes, **more: Any) -> Any:
    pasted = {"headers": headers, "body": body.decode()} | more
    answer = api().post(f"/v1/webhooks/{webhook['id']}/verify-signature", pasted)
    assert answer.status_code == 200, answer.json
    return answer.json


def failed(diagnosis: dict[str, Any]) -> dict[str, str]:
    """Return what each failed check says; the advice is about one of them."""
    assert [each["name"] for each in diagnosis["checks"]] == [
        "headers",
        "timestamp",
        "secret",
        "body",
        "encoding",
    ]
    wrong = {each["name"]: each["detail"] for each in diagnosis["checks"] if each["ok"] is False}
    assert diagnosis["valid"] is all(each["ok"] for each in diagnosis["checks"])
    assert not wrong or any(diagnosis["advice"].startswith(each) for each in wrong.values())
    return wrong


def remade(headers: dict[str, str], key: bytes, content: bytes) -> dict[str, str]:
    """Return headers whose signature a receiver's own code made."""
    digest = hmac.digest(key, content, "sha256")
    made = f"v1,{base64.b64encode(digest).decode()}"
    kept = {name: headers[name] for name in ("webhook-id", "webhook-timestamp")}
    return {**kept, "webhook-signature": made}


def content_of(headers: dict[str, str], body: bytes) -> bytes:
    return f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body


def test_a_delivery_as_it_was_sent_is_valid(api: ApiOf, sent: Sent) -> None:
    webhook, headers, body = sent
    diagnosis = diagnose(api, webhook, headers, body)
    assert failed(diagnosis) == {}
    assert diagnosis["valid"] is True
    assert "raw body" in diagnosis["advice"]

    in_base64 = {"headers": headers, "body_base64": base64.b64encode(body).decode()}
    answer = api().post(f"/v1/webhooks/{webhook['id']}/verify-signature", in_base64)
    assert answer.json["valid"] is True


@pytest.mark.parametrize("kept", ["webhook-signature", "x-service-signature-v2"])
def test_one_of_the_two_signatures_is_enough(api: ApiOf, sent: Sent, kept: str) -> None:
    webhook, headers, body = sent
    alone = {"Webhook-Id": headers["webhook-id"], "HTTP_WEBHOOK_TIMESTAMP": "", kept: headers[kept]}
    alone["HTTP_WEBHOOK_TIMESTAMP"] = headers["webhook-timestamp"]
    assert diagnose(api, webhook, alone, body)["valid"] is True


ANEW = "parsed and written anew"
OTHER = "Another body than was sent"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda body: json.dumps(json.loads(body)).encode(), ANEW),
        (lambda body: json.dumps(json.loads(body), indent=2).encode(), ANEW),
        (lambda body: dumps(dict(reversed(json.loads(body).items()))), ANEW),
        (lambda body: b"\xef\xbb\xbf" + body, "byte-order mark"),
        (lambda body: body + b"\n", "line break"),
        (lambda body: body.replace(b"high", b"info"), f"{OTHER}: it differs from byte "),
        (lambda _: b"[" * 800 + b"]" * 800, OTHER),
    ],
    ids=["spaces", "indented", "another order", "mark", "line break", "a word", "nested deeply"],
)
def test_a_body_that_is_not_what_was_sent_is_told(
    api: ApiOf, sent: Sent, change: Callable[[bytes], bytes], says: str
) -> None:
    webhook, headers, body = sent
    wrong = failed(diagnose(api, webhook, headers, change(body)))
    assert list(wrong) == ["body"]
    assert says in wrong["body"]


def test_code_that_signs_a_body_written_anew_is_told(api: ApiOf, sent: Sent) -> None:
    webhook, headers, body = sent
    anew = json.dumps(json.loads(body)).encode()
    own = remade(headers, decode(webhook["secret"]), content_of(headers, anew))
    wrong = failed(diagnose(api, webhook, own, body))
    assert wrong == {"body": "The body was parsed and written anew."}


def test_timestamps_without_number_are_told_as_two_that_differ(api: ApiOf, sent: Sent) -> None:
    webhook, headers, body = sent
    many = ",".join([headers["x-service-signature-v2"], *(f"t={at}" for at in range(200))])
    wrong = failed(diagnose(api, webhook, {**headers, "x-service-signature-v2": many}, body))
    assert wrong == {"timestamp": "webhook-timestamp and t= in x-service-signature-v2 differ."}


@pytest.mark.parametrize(
    ("form", "says"),
    [
        (lambda secret: secret.encode(), "whsec_ included"),
        (lambda secret: secret.removeprefix("whsec_").encode(), "not decoded from base64"),
        (base64.b64decode, "The prefix whsec_ was left in"),
        (
            lambda secret: base64.b64decode(secret.replace("_", "/")[:48]),
            "The prefix whsec_ was left in",
        ),
    ],
)
def test_a_key_that_was_read_wrongly_is_told(
    api: ApiOf, sent: Sent, form: Callable[[str], bytes], says: str
) -> None:
    webhook, headers, body = sent
    own = remade(headers, form(webhook["secret"]), content_of(headers, body))
    wrong = failed(diagnose(api, webhook, own, body))
    assert list(wrong) == ["secret"]
    assert says in wrong["secret"]


@pytest.mark.parametrize("parts", ["{body}", "{at}.{body}", "{id}.{body}", "{at}.{id}.{body}"])
def test_signed_content_that_lacks_a_part_is_told(api: ApiOf, sent: Sent, parts: str) -> None:
    webhook, headers, body = sent
    content = parts.format(
        id=headers["webhook-id"], at=headers["webhook-timestamp"], body=body.decode()
    )
    own = remade(headers, decode(webhook["secret"]), content.encode())
    assert "The signed content is" in failed(diagnose(api, webhook, own, body))["body"]


def test_another_webhooks_an_older_and_an_unknown_secret_are_told_apart(
    api: ApiOf, sent: Sent
) -> None:
    webhook, headers, body = sent
    event_id, other = headers["webhook-id"], make_webhook(api())
    theirs = failed(diagnose(api, webhook, signed(other["secret"], event_id, body), body))
    assert theirs == {"secret": f"It is signed with a secret of {other['id']}."}

    path = f"/v1/webhooks/{webhook['id']}/rotate-secret"
    api().post(path, {"overlap_seconds": 3600})
    older = diagnose(api, webhook, headers, body)
    assert older["valid"] is True
    assert "an older secret, which signs until" in older["checks"][2]["detail"]

    api().post(path, {"overlap_seconds": 0})
    unknown = failed(diagnose(api, webhook, headers, body))
    assert list(unknown) == ["secret"]
    assert "no secret known" in unknown["secret"]


def test_a_secret_that_has_ended_is_told(api: ApiOf, sent: Sent) -> None:
    webhook, headers, body = sent
    api().post(f"/v1/webhooks/{webhook['id']}/rotate-secret", {"overlap_seconds": 1})
    while diagnose(api, webhook, headers, body)["valid"]:
        pass
    assert "which ended at" in failed(diagnose(api, webhook, headers, body))["secret"]


def encoded(digest: bytes) -> list[tuple[str, str, str]]:
    plain = base64.b64encode(digest).decode()
    return [
        ("webhook-signature", plain, "without `v1,`"),
        ("webhook-signature", f"v1,{digest.hex()}", "in hex and should be in base64"),
        ("webhook-signature", f"v1,{plain.rstrip('=')}", "lacks its padding"),
        ("webhook-signature", f"v1,{plain[:20]}", "cut off"),
        ("x-service-signature-v2", digest.hex(), "without `v2=`"),
        ("x-service-signature-v2", f"v2={plain}", "in base64 and should be in hex"),
        ("x-service-signature-v2", f"v2={digest.hex().upper()}", "upper case"),
    ]


@pytest.mark.parametrize("place", range(7))
def test_a_signature_in_another_form_is_told(api: ApiOf, sent: Sent, place: int) -> None:
    webhook, headers, body = sent
    digest = hmac.digest(decode(webhook["secret"]), content_of(headers, body), "sha256")
    header, value, says = encoded(digest)[place]
    own = {name: headers[name] for name in ("webhook-id", "webhook-timestamp")} | {header: value}
    wrong = failed(diagnose(api, webhook, own, body))
    assert list(wrong) == ["encoding"]
    assert says in wrong["encoding"]


def test_clocks_that_differ_are_told(api: ApiOf, sent: Sent) -> None:
    webhook, headers, body = sent
    old = signed(webhook["secret"], headers["webhook-id"], body, age=4000)
    assert "400" in failed(diagnose(api, webhook, old, body))["timestamp"]
    at = datetime.fromtimestamp(int(old["webhook-timestamp"]), UTC)
    assert diagnose(api, webhook, old, body, received_at=at.isoformat())["valid"] is True

    ahead = (at - timedelta(seconds=301)).isoformat()
    wrong = failed(diagnose(api, webhook, old, body, received_at=ahead))
    assert wrong["timestamp"].startswith("It was signed 301 s after it was received")
    thousands = headers | {"webhook-timestamp": headers["webhook-timestamp"] + "000"}
    assert "differ" in failed(diagnose(api, webhook, thousands, body))["timestamp"]


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature"])
def test_a_header_that_is_missing_is_told(api: ApiOf, sent: Sent, name: str) -> None:
    webhook, headers, body = sent
    left = {each: value for each, value in headers.items() if each.startswith("webhook-")}
    del left[name]
    diagnosis = diagnose(api, webhook, left, body)
    assert diagnosis["valid"] is False
    assert name in failed(diagnosis)["headers"]


def test_nothing_pasted_is_stored_or_logged(
    api: ApiOf, sent: Sent, admin_engine: Engine, capfd: pytest.CaptureFixture[str]
) -> None:
    webhook, headers, body = sent
    planted = "Pp" + "planted" * 4
    diagnose(api, webhook, headers | {"x-planted": planted}, body + planted.encode())
    path = f"/v1/webhooks/{webhook['id']}/verify-signature"
    api().post(path, {"headers": {"a": 1, planted: planted}, "body": planted})
    assert planted not in "".join(capfd.readouterr())

    with admin_engine.connect() as connection:
        tables = connection.scalars(
            text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        ).all()
        for table in tables:
            found = f'SELECT count(*) FROM "{table}" AS row WHERE row::text ~ :planted'
            assert (
                connection.scalar(text(found), {"planted": f"{planted}|{planted.encode().hex()}"})
                == 0
            ), table


def test_what_cannot_be_checked_is_refused(api: ApiOf, sent: Sent) -> None:
    webhook, headers, _ = sent
    path = f"/v1/webhooks/{webhook['id']}/verify-signature"
    assert pointers(api().post(path, {"headers": headers})) == ["/body"]
    both = {"headers": headers, "body": "", "body_base64": ""}
    assert pointers(api().post(path, both)) == ["/body"]
    assert pointers(api().post(path, {"headers": {"a": 1}, "body": ""})) == ["/headers/a"]
    bad = {"headers": headers, "body_base64": "%"}
    assert pointers(api().post(path, bad)) == ["/body_base64"]
    nowhere = f"/v1/webhooks/whk_{NOBODY}/verify-signature"
    refused(api().post(nowhere, {"headers": {}, "body": ""}), 404, "not-found")
