"""`doctor`, `tail`, and ids that a shell completes."""

import json
import time
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from record_service import Recorder

from tests.client.conftest import Command
from tests.support.callers.api import ApiOf
from tests.support.callers.making import make_agent, make_finding
from tests.support.servers.certificates import ServerAuthority
from tests.support.servers.receivers import Receiver, Request, http_answer

KEY = {"id": "key_1", "name": "n", "role": "read", "pin": None, "expires_at": None}


def checks(records: Command) -> tuple[int, dict[str, tuple[bool, str]]]:
    ran = records("--patience", "0", "doctor", "--json")
    told = json.loads(ran.out)["checks"]
    return ran.code, {each["name"]: (each["ok"], each["detail"]) for each in told}


def test_a_client_in_good_health_is_told_what_it_has(records: Command, state: Path) -> None:
    code, told = checks(records)

    assert code == 0, told
    assert list(told) == ["reach", "key", "clock", "spool"]
    assert "role admin" in told["key"][1]
    assert told["clock"] == (True, "as the service's")
    assert told["spool"][1].startswith(f"{state / 'spool'}: 0 files")
    assert records("doctor").out.splitlines()[-1].startswith("spool\tok\t")


def test_what_is_wrong_is_named(records: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_API_KEY", "svc_wrong")
    code, told = checks(records)
    assert (code, told["key"][0], "key" in told["key"][1]) == (1, False, True)
    monkeypatch.setenv("SERVICE_BASE_URL", "http://127.0.0.1:9")
    code, told = checks(records)
    assert (code, told["reach"][0], "refused" in told["reach"][1]) == (1, False, True)


def test_a_clock_that_receivers_would_refuse_is_told(
    records: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = json.dumps({**KEY, "tenant_id": "ten_1"}).encode()

    def answer(_: Request) -> bytes:
        return http_answer(200, body, {"Date": formatdate(time.time() + 400, usegmt=True)})

    with Receiver(answer) as service:
        monkeypatch.setenv("SERVICE_BASE_URL", service.url(""))
        code, told = checks(records)
    ok, detail = told["clock"]
    assert (code, ok, detail.endswith(" s behind the service's")) == (1, False, True)
    assert "cannot add records" in told["key"][1]


@pytest.mark.parametrize("trusted", [True, False])
def test_tls_is_told_with_the_end_of_the_certificate_or_why_it_fails(
    records: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trusted: bool
) -> None:
    authority = ServerAuthority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", authority.ca_file)
    body = json.dumps({**KEY, "tenant_id": "ten_1"}).encode()
    with Receiver(http_answer(200, body), tls=authority.server("127.0.0.1", trusted=trusted)) as it:
        monkeypatch.setenv("SERVICE_BASE_URL", it.url(""))
        _, told = checks(records)
    if trusted:
        ok, detail = told["tls"]
        assert (ok, detail.endswith("the certificate ends in 30 days")) == (True, True)
        assert told["clock"] == (True, "the service does not tell its time")
    else:
        assert (told["reach"][0], "TLS: " in told["reach"][1]) == (False, True)


def test_what_waits_on_this_machine_is_counted(records: Command, state: Path) -> None:
    with Receiver(http_answer(503)) as away:
        recorder = Recorder("desk", base_url=away.url(""), key="svc_key", spool=state)
        with recorder.session() as session:
            session.record("refund", "Order 4711").end()
        recorder.close(0)
    _, told = checks(records)
    assert " 1 files, " in told["spool"][1]
    assert " 0 waiting" not in told["spool"][1]


def test_events_are_printed_from_the_oldest_and_end_where_none_is_left(
    records: Command, api: ApiOf, session: dict[str, Any]
) -> None:
    ids = [make_finding(api(), session["id"], title=f"n {n}\t")["id"] for n in range(2)]
    tail = ["tail", "--oldest", "--no-follow", "--type", "finding.created"]

    rows = [line.split("\t") for line in records(*tail).out.splitlines()]
    assert [(row[1], row[3]) for row in rows] == [
        ("finding.created", "n 0\\t"),
        ("finding.created", "n 1\\t"),
    ]
    told = [json.loads(line) for line in records(*tail, "--json").out.splitlines()]
    assert [each["data"]["id"] for each in told] == ids


def test_a_shell_completes_ids_and_waits_for_no_service_that_is_away(
    records_process: Command, api: ApiOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [make_agent(api())["id"] for _ in range(2)]
    monkeypatch.setenv("_RECORD_SERVICE_COMPLETE", "bash_complete")

    def completed(*words: str) -> list[str]:
        monkeypatch.setenv("COMP_WORDS", " ".join(["record-service", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        return records_process().out.split()

    assert completed("agents", "show", "agt_") == [f"plain,{each}" for each in made[::-1]]
    assert completed("sessions", "open", "--agent", made[0][:-1]) == [f"plain,{made[0]}"]
    assert completed("sessions", "show", "") == []
    monkeypatch.setenv("SERVICE_BASE_URL", "http://127.0.0.1:9")
    assert completed("agents", "show", "agt_") == []
