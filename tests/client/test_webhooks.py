"""Webhooks, deliveries and jobs by the command, without a worker."""

import json
import shlex
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from record_service import forwarding

from app.lib.crypto import webhook_signing
from app.lib.crypto.webhook_signing import Signer
from tests.client.conftest import Command
from tests.support.callers.api import ApiOf
from tests.support.callers.making import NOBODY, make_finding, make_session
from tests.support.faults import LONG_ENOUGH
from tests.support.servers.receivers import Receiver, http_answer

BODY = b'{"id":"evt_1","data":{}}'


@pytest.fixture
def webhook(records: Command) -> dict[str, Any]:
    made = records(
        "webhooks", "add", "http://127.0.0.1:9/hook", "--types", "finding.created", "--json"
    )
    added: dict[str, Any] = json.loads(made.out)
    return added


def test_a_webhook_is_made_held_released_and_deleted(
    records: Command, api: ApiOf, webhook: dict[str, Any]
) -> None:
    path = f"/v1/webhooks/{webhook['id']}"
    assert webhook["event_types"] == ["finding.created"]
    for verb, held in (("hold", True), ("release", False)):
        assert records("webhooks", verb, webhook["id"]).code == 0
        assert api().get(path).json["held"] is held
    rotated = json.loads(records("webhooks", "rotate", webhook["id"], "--json").out)
    assert rotated["secret"] != webhook["secret"]
    for destroys in (["rotate", webhook["id"], "--overlap", "0"], ["delete", webhook["id"]]):
        assert records("webhooks", *destroys).code == 2
        assert records("webhooks", *destroys, "--yes").code == 0
    assert records("webhooks", "show", webhook["id"]).code == 3


def test_headers_are_given_replaced_kept_and_ended(
    records: Command, api: ApiOf, tmp_path: Path
) -> None:
    url = "http://127.0.0.1:9/hook"
    given = ("--header", "Authorization: Bearer s3cr3t: it", "--header", "X-Env:prod")
    made = json.loads(records("webhooks", "add", url, *given, "--json").out)
    path = f"/v1/webhooks/{made['id']}"
    assert api().get(path).json["headers"] == {"Authorization": "***", "X-Env": "***"}
    file = tmp_path / "headers.txt"
    file.write_text("Authorization: ***\n\nX-Other: a\n")

    def update(*options: str) -> int:
        done = records("webhooks", "update", made["id"], *options, "--json")
        assert "s3cr3t" not in done.out + done.err
        return done.code

    assert update("--header", f"@{file}", "--url", url + "/new") == 0
    changed = api().get(path).json
    assert (changed["url"], list(changed["headers"])) == (
        url + "/new",
        ["Authorization", "X-Other"],
    )
    assert update("--header", "no colon") == 2
    assert update("--header", "A: b", "--no-headers") == 2
    assert update("--header", "A: b", "--header", "A: c") == 2
    assert update() == 2
    assert update("--no-headers") == 0
    assert api().get(path).json["headers"] == {}


def test_a_delivery_is_found_explained_and_sent_again(
    records: Command, api: ApiOf, webhook: dict[str, Any]
) -> None:
    session = make_session(api())["id"]
    make_finding(api(), session)
    listed = json.loads(records("deliveries", "list", "--status", "pending", "--json").out)
    (delivery,) = listed["data"]
    of_session = records("deliveries", "list", "--session", session, "--webhook", webhook["id"])
    assert of_session.out.startswith(delivery["id"])
    narrow = ("--session", session, "--event", delivery["event_id"], "--code", "500")
    assert records("deliveries", "groups", *narrow).code == 0
    assert records("deliveries", "groups", "--record", f"rec_{NOBODY}").out == ""

    found = json.loads(records("deliveries", "show", delivery["id"], "--json").out)
    assert found["payload"]["type"] == "finding.created"
    assert records("search", delivery["id"]).out.startswith(f"delivery\t{delivery['id']}\t")
    why = records("webhooks", "why", webhook["id"], delivery["event_id"])
    assert (why.code, len(why.out.splitlines())) == (0, 2)
    assert records("deliveries", "retry-now", delivery["id"]).code == 0
    assert records("deliveries", "show", "dlv_none").code == 3
    counted = json.loads(records("deliveries", "replay", delivery["id"], "--dry-run", "--json").out)
    assert (counted["count"], counted["left_out"]["already_waiting"]) == (0, 1)
    assert records("deliveries", "replay", "--rate", "5").code == 2
    assert records("deliveries", "groups").out == ""
    assert len(records("webhooks", "stats", webhook["id"]).out.splitlines()) >= 24


def test_a_job_is_started_shown_and_cancelled(records: Command, webhook: dict[str, Any]) -> None:
    job = json.loads(records("webhooks", "check", webhook["id"], "--json").out)

    assert records("jobs", "list", "--kind", "receiver_check").out.startswith(job["id"])
    assert json.loads(records("jobs", "show", job["id"], "--json").out)["status"] == "queued"
    assert records("jobs", "retry", job["id"]).code == 5
    started = records("deliveries", "replay", "--webhook", webhook["id"], "--json")
    replay = json.loads(started.out)
    assert records("jobs", "cancel", replay["id"]).code == 0
    watched = records("jobs", "show", replay["id"], "--watch")
    assert (watched.code, "cancelled" in watched.out) == (1, True)


def test_an_event_is_forwarded_once_without_a_reader_of_the_output(
    records: Command, api: ApiOf
) -> None:
    session = make_session(api())["id"]
    with Receiver() as receiver:
        listen = ["webhooks", "listen", "--forward-to", receiver.url()]
        piped = f"{shlex.join([sys.executable, '-m', 'record_service', *listen])} | :"
        for _ in range(2):
            with subprocess.Popen(
                ["bash", "-c", piped], stderr=subprocess.PIPE, text=True
            ) as listener:
                assert listener.stderr is not None
                assert listener.stderr.readline().startswith("ready")
                make_finding(api(), session)
                assert listener.wait(LONG_ENOUGH) == 0
        told = [each.headers["webhook-id"] for each in receiver.requests]
    assert (len(told), len(set(told))) == (2, 2)


@pytest.mark.parametrize(
    "answer",
    [
        http_answer(418, b"plain", {"Content-Encoding": "gzip"}),
        http_answer(418, b"cut here")[: -len(b" here")],
    ],
    ids=["not what it says", "without its end"],
)
def test_an_event_that_was_answered_is_not_sent_again_for_the_answer_s_body(answer: bytes) -> None:
    def wait(why: str, _: float) -> None:
        pytest.fail(why)

    with Receiver(answer) as receiver:
        secret = webhook_signing.new_secret()
        with closing(forwarding.Receiver(receiver.url(), secret, wait)) as forwards:
            assert forwards.send({"id": "evt_1"}).status == 418
        assert len(receiver.requests) == 1


@pytest.mark.parametrize(
    ("saved", "code", "named"),
    [
        (
            lambda head, body: f"POST /hook HTTP/1.1\r\n{head}\r\n\r\n".encode() + body,
            0,
            "body\tok",
        ),
        (
            lambda head, body: head.replace("\r", "").encode() + b"\n\n" + body + b"\n",
            1,
            "body\tFAILED",
        ),
        (lambda head, body: b"no request", 2, ""),
    ],
    ids=["as it came", "a line break more", "none"],
)
def test_a_saved_request_is_verified(
    records: Command, webhook: dict[str, Any], tmp_path: Path, saved: Any, code: int, named: str
) -> None:
    file = tmp_path / "request"
    file.touch()
    at = int(file.stat().st_mtime)
    signed = Signer([webhook["secret"]]).headers("evt_1", at, BODY)
    head = "\r\n".join(f"{name}: {value}" for name, value in signed.items())
    file.write_bytes(saved(head, BODY))

    ran = records("webhooks", "verify", webhook["id"], str(file))

    assert (ran.code, named in ran.out) == (code, True), ran
    assert webhook["secret"] not in ran.out + ran.err
