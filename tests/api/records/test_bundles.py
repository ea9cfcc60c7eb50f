"""The signed bytes over HTTP: exact, verifiable by strangers' tools, in parts, and as exports."""

import json
import re
import subprocess
from base64 import b64decode
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from sqlalchemy import Engine, text

from app.api.http.services import client_network
from app.core import signing_keys
from app.database import Database
from app.evidence import bundle
from app.ids import parse
from tests.support.callers.api import Answer, ApiOf
from tests.support.callers.making import make_record, make_session, refused

STEP = {
    "name": "look up the order",
    "kind": "tool",
    "started_at": "2026-01-31T12:00:00Z",
    "ended_at": "2026-01-31T12:00:01Z",
    "status": "ok",
    "events": [{"name": "retried", "at": "2026-01-31T12:00:00.5Z"}],
}


@pytest.fixture
def record(api: ApiOf) -> dict[str, Any]:
    """Return a record with a step."""
    return make_record(api(), make_session(api())["id"], steps=[STEP])


@pytest.fixture
def ask(api: ApiOf, record: dict[str, Any]) -> Callable[..., Answer]:
    """Return a reader of the bundle: `ask(Range="bytes=0-1")`, `ask("HEAD")`."""

    def read(method: str = "GET", **headers: str) -> Answer:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return api().request(method, f"/v1/records/{record['id']}/bundle", headers=sent)

    return read


@pytest.mark.parametrize("changed", ["set_byte(bytes, 40, get_byte(bytes, 40) # 1)", "''"])
def test_stored_bytes_that_were_changed_are_never_answered(
    ask: Callable[..., Answer], record: dict[str, Any], admin_engine: Engine, changed: str
) -> None:
    with admin_engine.begin() as connection:
        attack = text(f"UPDATE bundles SET bytes = {changed} WHERE record_id = :id")
        assert connection.execute(attack, {"id": parse("rec", record["id"])}).rowcount == 1
    got = ask()
    assert (got.status_code, got.content_type) == (500, "application/problem+json")


def test_the_bytes_are_those_that_were_signed(
    ask: Callable[..., Answer], record: dict[str, Any], database: Database, tmp_path: Path
) -> None:
    got = ask()
    assert got.content_type == "application/json"
    assert got.content_length == len(got.data) == record["bundle"]["size"]
    assert sha256(got.data).hexdigest() == record["bundle"]["sha256"]
    assert got.headers["ETag"] == f'"{record["bundle"]["sha256"]}"'
    assert bundle.read(got.data)["record"]["id"] == record["id"]
    signed = re.fullmatch(
        r'keyid="([0-9a-f]{16})", alg="ed25519", sig="([^"]+)"',
        got.headers["x-service-bundle-signature"],
    )
    assert signed is not None
    with database.across_tenants() as session:
        pem = signing_keys.public_key(session, signed[1]).pem
    (tmp_path / "public-key.pem").write_bytes(pem)
    (tmp_path / "bundle.json").write_bytes(got.data)
    (tmp_path / "bundle.sig").write_bytes(b64decode(signed[2]))
    line = "openssl pkeyutl -verify -pubin -inkey public-key.pem -rawin -in bundle.json"
    said = subprocess.run(
        [*line.split(), "-sigfile", "bundle.sig"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Signature Verified Successfully" in said.stdout


def test_head_says_what_get_says_without_the_bytes(ask: Callable[..., Answer]) -> None:
    got, head = ask(), ask("HEAD", Range="bytes=0-1")
    assert head.status_code == 200
    assert head.data == b""
    varying = {"X-Request-ID", "RateLimit-Remaining", "RateLimit-Reset", "Date"}
    assert {name: value for name, value in head.headers if name not in varying} == {
        name: value for name, value in got.headers if name not in varying
    }


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ('"{etag}"', 304),
        ('W/"{etag}"', 304),
        ('"other", W/"x" , "{etag}"', 304),
        ("*", 304),
        ('"other"', 200),
        ('"{etag}x"', 200),
        ("", 200),
    ],
)
def test_a_reader_that_has_the_bytes_is_not_sent_them_again(
    ask: Callable[..., Answer], record: dict[str, Any], sent: str, status: int
) -> None:
    named = sent.format(etag=record["bundle"]["sha256"])
    for answer in (ask(If_None_Match=named), ask("HEAD", If_None_Match=named)):
        assert answer.status_code == status
    got = ask(If_None_Match=named, Range="bytes=0-3")
    assert got.status_code == (304 if status == 304 else 206), "the condition comes first"
    assert got.headers["ETag"] == f'"{record["bundle"]["sha256"]}"'
    assert got.headers["Vary"]


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ("bytes=0-0", (0, 1)),
        ("bytes=10-19", (10, 20)),
        ("Bytes=10-19", (10, 20)),
        ("bytes=10-", (10, None)),
        ("bytes=-7", (-7, None)),
        ("bytes=-999999999", (0, None)),
        ("bytes=5-999999999999999999", (5, None)),
    ],
)
def test_a_range_is_that_part(
    ask: Callable[..., Answer], sent: str, expected: tuple[int, int | None]
) -> None:
    whole, part = ask().data, ask(Range=sent)
    start, stop, _ = slice(*expected).indices(len(whole))
    assert part.status_code == 206
    assert part.data == whole[start:stop]
    assert part.headers["Content-Range"] == f"bytes {start}-{stop - 1}/{len(whole)}"
    assert part.content_length == stop - start


@pytest.mark.parametrize("sent", ["bytes=999999999-", "bytes=-0", "bytes=-00"])
def test_a_range_outside_is_refused_with_the_size(
    ask: Callable[..., Answer], record: dict[str, Any], sent: str
) -> None:
    answer = ask(Range=sent)
    refused(answer, 416, "range-not-satisfiable")
    assert answer.headers["Content-Range"] == f"bytes */{record['bundle']['size']}"


@pytest.mark.parametrize(
    "sent",
    [
        "items=0-1",
        "bytes=0-1,5-6",
        "bytes=5-2",
        "bytes=",
        "bytes=a-b",
        "0-1",
        "bytes=0-1" + "9" * 30,
    ],
)
def test_what_is_no_single_range_is_answered_with_the_whole(
    ask: Callable[..., Answer], record: dict[str, Any], sent: str
) -> None:
    answer = ask(Range=sent)
    assert (answer.status_code, len(answer.data)) == (200, record["bundle"]["size"])


def test_a_range_is_of_the_version_that_is_named_or_the_whole_comes(
    ask: Callable[..., Answer], record: dict[str, Any]
) -> None:
    etag = f'"{record["bundle"]["sha256"]}"'
    assert ask(Range="bytes=0-3", If_Range=etag).status_code == 206
    for other in ('"other"', f"W/{etag}", "Sat, 31 Jan 2026 12:00:00 GMT"):
        assert ask(Range="bytes=0-3", If_Range=other).status_code == 200
    assert ask(If_Match=etag).status_code == 200
    refused(ask(If_Match='"other"'), 412, "precondition-failed")


@pytest.mark.parametrize(
    ("export", "member"),
    [
        ("prov.json", "wasGeneratedBy"),
        ("otlp-logs.json", "resourceLogs"),
        ("otlp-traces.json", "resourceSpans"),
    ],
)
def test_exports_are_json_and_known_again(
    api: ApiOf, record: dict[str, Any], export: str, member: str
) -> None:
    path = f"/v1/records/{record['id']}/{export}"
    got = api().get(path)
    assert got.content_type == "application/json"
    assert json.loads(got.data)[member]
    again = api().get(path, headers={"If-None-Match": got.headers["ETag"]})
    assert (again.status_code, again.data) == (304, b"")
    head = api().request("HEAD", path)
    assert (head.status_code, head.data) == (200, b"")
    assert head.headers["ETag"] == got.headers["ETag"]
    assert "Content-Length" not in head.headers


def test_no_two_exports_share_an_etag(api: ApiOf, record: dict[str, Any]) -> None:
    names = ("bundle", "prov.json", "otlp-logs.json", "otlp-traces.json")
    etags = {api().get(f"/v1/records/{record['id']}/{name}").headers["ETag"] for name in names}
    assert len(etags) == len(names)


@pytest.mark.parametrize(
    ("seen", "counted"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8::1%eth0", "2001:db8::/64"),
    ],
)
def test_a_host_counts_as_one_address(client: FlaskClient, seen: str, counted: str) -> None:
    with client.application.test_request_context(environ_base={"REMOTE_ADDR": seen}):
        assert client_network() == counted
