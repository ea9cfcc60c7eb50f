"""Pushing files: each becomes one record, however often and wherever it was broken off."""

import json
import os
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from record_service import Client, Conflict, Denied, Invalid, NotFound, Problem, cli, journal
from record_service.pushing import Content, Pusher

from tests.client.conftest import Command
from tests.support.callers.api import ApiOf
from tests.support.callers.making import make_session, record_of


@pytest.fixture
def session(api: ApiOf) -> str:
    made: str = make_session(api())["id"]
    return made


def contents(api: ApiOf, session: str) -> list[Any]:
    """Return the content of each record of a session."""
    rows = api().get(f"/v1/records?session_id={session}&limit=200").json["data"]
    return [api().get(f"/v1/records/{row['id']}/bundle").json["content"] for row in rows]


def written(folder: Path, count: int) -> list[str]:
    paths = [folder / f"{number}.json" for number in range(count)]
    for number, path in enumerate(paths):
        path.write_text(json.dumps({"number": number}))
    return [str(path) for path in paths]


def test_any_file_is_content_and_a_second_run_adds_nothing(
    records: Command, api: ApiOf, session: str, tmp_path: Path
) -> None:
    files = written(tmp_path, 20)
    (tmp_path / "text").write_text("grüße\n")
    (tmp_path / "bytes").write_bytes(b"\xff\x00")
    files += [str(tmp_path / "text"), str(tmp_path / "bytes")]

    first = records("record", "push", "--session", session, "--label", "a:b", *files)
    again = records("record", "push", "--session", session, "--label", "a:b", *files, "--json")

    assert (first.code, again.code) == (0, 0)
    told = [json.loads(line) for line in again.out.splitlines()]
    assert all(each["again"] for each in told)
    assert sorted(f"{each['path']}\t{each['id']}" for each in told) == sorted(
        first.out.splitlines()
    )
    wanted: list[Any] = [{"number": number} for number in range(20)]
    wanted += ["grüße\n", {"base64": "/wA="}]
    assert sorted(map(str, contents(api, session))) == sorted(map(str, wanted))


def test_a_record_s_own_json_goes_as_it_is_and_a_wrong_one_stops_no_other(
    records: Command, api: ApiOf, session: str, tmp_path: Path
) -> None:
    good, wrong, none = (tmp_path / name for name in ("good", "wrong", "none"))
    good.write_text(json.dumps(record_of(session, content=[1, 2])))
    wrong.write_text(json.dumps({"session_id": session}))
    none.write_text("text")

    ran = records("record", "push", str(wrong), str(none), str(tmp_path / "absent"), str(good))

    assert ran.code == 2
    assert [name in ran.err for name in ("wrong: ", "none: ", "absent: ")] == [True] * 3
    assert ran.out.startswith(f"{good}\trec_")
    assert contents(api, session) == [[1, 2]]
    # What was refused is no doubt: mended, it is pushed.
    wrong.write_text(json.dumps(record_of(session, content=3)))
    assert records("record", "push", str(wrong)).code == 0
    assert sorted(map(str, contents(api, session))) == ["3", "[1, 2]"]


@pytest.mark.parametrize("arrived", [True, False])
@pytest.mark.parametrize("kept_seconds", [journal.KEPT_SECONDS, 0])
def test_a_file_whose_answer_never_came_is_pushed_once(
    records: Command,
    api: ApiOf,
    session: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arrived: bool,
    kept_seconds: int,
) -> None:
    # Killed between two notes; run again within the day, and after it.
    push = ["record", "push", "--session", session, *written(tmp_path, 3)]

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    def killed_before_it_is_sent(self: journal.Journal, key: str) -> None:
        begin(self, key)
        raise KeyboardInterrupt

    begin = journal.Journal.begin
    with monkeypatch.context() as broken:
        if arrived:
            broken.setattr(journal.Journal, "finish", killed)
        else:
            broken.setattr(journal.Journal, "begin", killed_before_it_is_sent)
        assert cli.run(push) == 130
    monkeypatch.setattr(journal, "KEPT_SECONDS", kept_seconds)
    if not kept_seconds:
        # As the service forgets after its day: another key knows no Idempotency-Key of the first.
        monkeypatch.setenv(
            "SERVICE_API_KEY", api().post("/v1/keys", {"name": "n", "role": "write"}).json["key"]
        )

    assert cli.run(push) == 0

    found = sorted(content["number"] for content in contents(api, session))
    assert found == [0, 1, 2]


class Refusing:
    """A client of a service that refuses each record."""

    def __init__(self, error: Problem) -> None:
        self.transport = SimpleNamespace(patience=0.0, sleep=None)
        self.keys: list[str] = []
        self._error = error

    def post(self, _: str, body: bytes, key: str) -> dict[str, Any]:
        self.keys.append(key)
        raise self._error


@pytest.mark.parametrize(
    ("error", "in_doubt"),
    [
        (Denied(401, "unauthenticated", {}), True),
        (Conflict(409, "idempotency-key-in-use", {}), True),
        (Invalid(422, "validation-failed", {}), False),
        (NotFound(404, "not-found", {}), False),
    ],
)
def test_only_a_refusal_of_the_file_says_that_no_attempt_arrived(
    state: Path, tmp_path: Path, error: Problem, in_doubt: bool
) -> None:
    (path,) = written(tmp_path, 1)
    service = Refusing(error)
    with closing(journal.Journal("http://x", "ten_x", "key_one")) as kept:
        pusher = Pusher(cast(Client, service), kept)
        (pushed,) = pusher.push([path], Content("ses_x"))
    assert pushed.error is error
    with closing(journal.Journal("http://x", "ten_x", "key_other")) as kept:
        assert (kept.stale_since(service.keys[0]) is not None) is in_doubt


def test_no_name_and_no_pipe_breaks_a_push(
    records_process: Command, api: ApiOf, session: str, tmp_path: Path
) -> None:
    names = [str(tmp_path / name) for name in ("\udcff", "\x1b[31m")]
    for name in names:
        Path(name).write_bytes(os.fsencode(name))
    os.mkfifo(tmp_path / "pipe")

    ran = records_process("record", "push", "--session", session, *names, str(tmp_path / "pipe"))

    assert ran.code == 2
    assert "pipe: this is a pipe" in ran.err
    assert "\x1b" not in ran.out
    assert sorted(line.partition("\t")[0] for line in ran.out.splitlines()) == sorted(
        f"{tmp_path}/{name}" for name in ("\\udcff", "\\u001b[31m")
    )
    titles = {row["title"] for row in api().get("/v1/records").json["data"]}
    assert {"\\xff"} <= titles


def test_standard_input_is_one_record_each_time(
    records_process: Command, api: ApiOf, session: str
) -> None:
    push = ["record", "push", "--session", session, "-"]
    for _ in range(2):
        assert records_process(*push, stdin=b'{"piped": true}').code == 0
    assert contents(api, session) == [{"piped": True}] * 2
    assert records_process("record", "push", "-", "other").code == 2
