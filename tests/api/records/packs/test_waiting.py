"""Requests that wait for a pack: how long, how many, and for whom."""

import math
import time
from collections.abc import Callable

import pytest
from sqlalchemy import Engine

from app.api.http import admission
from app.core.packs import building
from tests.support.callers.making import token_to
from tests.support.database.databases import execute
from tests.support.evidence.packing import Packer, files_in, path_of


def working(packer: Packer, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], bool]]:
    """Let a worker build while a request waits for it: at the first poll of each."""
    polls: list[Callable[[], bool]] = []
    poll = admission._poll  # it holds a thread

    def polling(settled: Callable[[], bool], until: float) -> None:
        polls.append(settled)
        packer.work()
        poll(settled, until)

    monkeypatch.setattr(admission, "_poll", polling)
    return polls


def test_a_caller_with_a_key_waits_for_it(packer: Packer, monkeypatch: pytest.MonkeyPatch) -> None:
    polls = working(packer, monkeypatch)
    first, second = packer.record(), packer.record()
    answer = packer.api().get(path_of(first))
    assert files_in(answer.data)
    assert "Preference-Applied" not in answer.headers
    answer = packer.api().get(path_of(second), headers={"Prefer": "wait=5"})
    assert (answer.status_code, answer.headers["Preference-Applied"]) == (200, "wait=5")
    assert len(polls) == 2
    answer = packer.api().get(path_of(second), headers={"Prefer": "wait=5"})
    assert (answer.status_code, len(polls)) == (200, 2)
    assert "Preference-Applied" not in answer.headers, "there was nothing to wait for"


def test_no_request_waits_longer_than_it_asked_for(
    packer: Packer, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def poll(settled: Callable[[], bool], until: float) -> None:
        waits.append(math.ceil(until - time.monotonic()))
        assert not settled()

    monkeypatch.setattr(admission, "_poll", poll)
    record = packer.record()
    for said, waited, applied in (
        (None, [10.0], None),
        ("wait=3", [3], "wait=3"),
        ("foo; bar, Wait = 3 ;x=y", [3], "wait=3"),
        ('wait = "3"', [3], "wait=3"),
        ('wait="3', [3], "wait=3"),
        ("wait=3 4", [10.0], None),
        ("wait 3", [10.0], None),
        ("wait=99999", [15], "wait=15"),
        ("respond-async", [], "respond-async"),
        ("respond-async, wait=2", [2], "wait=2"),
        ("wait=2, wait=9", [2], "wait=2"),
        ("wait=-1", [10.0], None),
        ("wait=soon, x", [10.0], None),
    ):
        waits.clear()
        headers = {} if said is None else {"Prefer": said}
        answer = packer.api().get(path_of(record), headers=headers)
        assert (answer.status_code, waits) == (202, waited), said
        assert answer.headers.get("Preference-Applied") == applied, said


def test_requests_beyond_the_limit_of_waits_are_answered_at_once(
    packer: Packer, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = packer.record()
    monkeypatch.setattr(admission, "OF_A_KEY", 0)
    answer = packer.api().get(path_of(record), headers={"Prefer": "wait=15"})
    assert (answer.status_code, answer.headers["Retry-After"]) == (202, "1")
    assert "Preference-Applied" not in answer.headers


def test_a_job_that_waits_for_its_next_try_is_not_waited_for(
    packer: Packer, admin_engine: Engine
) -> None:
    record = packer.record()
    packer.ask(record)
    execute(
        admin_engine,
        "UPDATE jobs SET status = 'retrying', run_at = clock_timestamp() + interval '5 min'"
        " WHERE id = :id",
        id=packer.jobs()[0].id,
    )
    answer = packer.api().get(path_of(record), headers={"Prefer": "wait=15"})
    assert (answer.status_code, answer.headers["Retry-After"]) == (202, "60")
    assert "Preference-Applied" not in answer.headers


def test_a_link_gets_its_pack_and_is_not_made_to_wait_unasked(
    packer: Packer, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = packer.record()
    token, _ = token_to(packer.api(), record)
    path = f"{path_of(record)}?share_token={token}"
    monkeypatch.setattr(admission, "_poll", lambda *_: pytest.fail("a link waits"))
    answer = packer.api(None).get(path)
    assert answer.status_code == 202
    assert answer.headers["Location"] == f"https://records.test{path}"
    assert "Preference-Applied" not in answer.headers
    assert answer.json["job"].keys() == {"status", "progress"}, "the rest is for the tenant"
    by_header = packer.ask(record, None, **{"x-share-token": token})
    assert by_header.headers["Location"] == f"https://records.test{path_of(record)}"
    packer.work()
    answer = packer.api(None).get(answer.headers["Location"])
    assert files_in(answer.data)
    assert answer.headers["Cache-Control"] == "private, no-store"


@pytest.mark.parametrize("is_public", [False, True])
def test_a_request_without_a_key_waits_only_if_it_asks_and_not_for_long(
    packer: Packer, monkeypatch: pytest.MonkeyPatch, *, is_public: bool
) -> None:
    record = packer.record()
    path = f"{path_of(record)}?share_token={token_to(packer.api(), record)[0]}"
    if is_public:
        packer.api().patch("/v1/tenant/settings", {"bundle_visibility": "public"})
        path = path_of(record)
    polls = working(packer, monkeypatch)
    answer = packer.api(None).get(path, headers={"Prefer": "respond-async"})
    assert (answer.status_code, len(polls)) == (202, 0)
    assert answer.headers["Preference-Applied"] == "respond-async"
    answer = packer.api(None).get(path, headers={"Prefer": "wait=99"})
    assert (answer.status_code, len(polls)) == (200, 1)
    assert answer.headers["Preference-Applied"] == "wait=10"
    assert files_in(answer.data)


def test_requests_without_a_key_take_no_place_of_those_with_one(
    packer: Packer, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = packer.record(), packer.record()
    path = f"{path_of(first)}?share_token={token_to(packer.api(), first)[0]}"
    monkeypatch.setattr(admission, "OF_AN_ADDRESS", 0)
    polls = working(packer, monkeypatch)
    answer = packer.api(None).get(path, headers={"Prefer": "wait=9"})
    assert (answer.status_code, len(polls)) == (202, 0)
    assert "Preference-Applied" not in answer.headers
    assert packer.api().get(path_of(second)).status_code == 200
    assert len(polls) == 1


def test_a_public_pack_needs_no_key_and_a_key_may_wait_for_it(
    packer: Packer, monkeypatch: pytest.MonkeyPatch, mint: Callable[..., str]
) -> None:
    packer.api().patch("/v1/tenant/settings", {"bundle_visibility": "public"})
    first, second = packer.record(), packer.record()
    for key in (None, "svc_" + "0" * 46):
        answer = packer.ask(first, key)
        assert (answer.status_code, answer.json["job"]["status"]) == (202, "queued")
        assert answer.json["job"].keys() == {"status", "progress"}
    packer.work()
    answer = packer.ask(first, None)
    assert (answer.status_code, answer.headers["Cache-Control"]) == (200, "no-cache")
    polls = working(packer, monkeypatch)
    assert packer.api(mint("read")).get(path_of(second)).status_code == 200
    assert polls


def test_a_request_that_waits_for_a_newer_pack_gets_it(
    packer: Packer, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = packer.record()
    before = packer.built(record)
    monkeypatch.setattr(building, "VERSION", "9.9.9")
    polls = working(packer, monkeypatch)
    answer = packer.api().get(path_of(record))
    assert (answer.data, answer.headers["x-service-evidence"]) == (before, "outdated")
    assert polls == [], "what is there is answered at once"
    answer = packer.api().get(path_of(record), headers={"Prefer": "wait=9"})
    assert answer.headers["x-service-evidence"] == "current"
    assert answer.data != before
