"""Where output goes: files that are none, full disks, other encodings; and no arguments."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.client.conftest import Command
from tests.support.callers.api import ApiOf
from tests.support.callers.making import make_finding, make_record
from tests.support.faults import LONG_ENOUGH
from tests.support.servers.receivers import Receiver


def test_an_export_leaves_a_pipe_a_pipe_and_a_link_a_link(
    records: Command, api: ApiOf, session: dict[str, Any], tmp_path: Path
) -> None:
    record = make_record(api(), session["id"])["id"]
    whole = api().get(f"/v1/records/{record}/bundle").data
    pipe, link, file = tmp_path / "pipe", tmp_path / "link", tmp_path / "file"
    os.mkfifo(pipe)
    link.symlink_to(file)
    # Open for both ends: a bundle fits into what a pipe holds, and no open waits for a reader.
    both = os.open(pipe, os.O_RDWR)
    assert records("bundle", record, "-o", str(pipe)).code == 0
    assert pipe.is_fifo()
    assert os.read(both, len(whole) + 1) == whole
    os.close(both)
    assert records("bundle", record, "-o", str(link)).code == 0
    assert (link.is_symlink(), file.read_bytes()) == (True, whole)


# What `python -m record_service` does, in a process that dies when its first line is there.
_DIES_WRITING = """
import io, os, runpy, signal, sys

class Deadly(io.TextIOWrapper):
    def write(self, text):
        super().write(text)
        self.flush()
        if text.endswith("\\n"):
            os.kill(os.getpid(), signal.SIGKILL)

sys.stdout = Deadly(sys.stdout.buffer, encoding="utf-8")
runpy.run_module("record_service", run_name="__main__", alter_sys=True)
"""


@contextmanager
def listening(
    receiver: Receiver, out: str, program: Sequence[str] = ("-m", "record_service")
) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, *program, "webhooks", "listen", "--json"]
    with (
        Path(out).open("wb") as file,
        subprocess.Popen(
            [*command, "--forward-to", receiver.url()], stdout=file, stderr=subprocess.PIPE
        ) as listener,
    ):
        try:
            assert listener.stderr is not None
            assert listener.stderr.readline().startswith(b"ready")
            yield listener
        finally:
            listener.kill()


@pytest.mark.parametrize("is_written", [False, True], ids=["disk full", "the last act"])
@pytest.mark.toolbox
def test_an_event_is_sent_once_though_its_line_could_not_be_written_or_was_the_last_act(
    records: Command, api: ApiOf, session: dict[str, Any], tmp_path: Path, is_written: bool
) -> None:
    out, program, code = "/dev/full", ("-m", "record_service"), 2
    if is_written:
        out, program, code = str(tmp_path / "out"), ("-c", _DIES_WRITING), -signal.SIGKILL
    with Receiver() as receiver:
        for title in ("first", "second"):
            with listening(receiver, out, program) as listener:
                make_finding(api(), session["id"], title=title)
                assert listener.wait(LONG_ENOUGH) == code
            if is_written:
                assert json.loads(Path(out).read_text())["event"]["data"]["title"] == title
        titles = [json.loads(each.body)["data"]["title"] for each in receiver.requests]
    assert titles == ["first", "second"]


def test_an_event_that_is_only_shown_comes_again_if_its_line_could_not_be_written(
    records: Command, api: ApiOf, session: dict[str, Any], tmp_path: Path
) -> None:
    listen = [sys.executable, "-m", "record_service", "webhooks", "listen", "--json"]
    with (
        Path("/dev/full").open("wb") as full,
        subprocess.Popen(listen, stdout=full, stderr=subprocess.PIPE) as listener,
    ):
        assert listener.stderr is not None
        assert listener.stderr.readline().startswith(b"ready")
        made = make_finding(api(), session["id"])["id"]
        assert listener.wait(LONG_ENOUGH) == 2
    with subprocess.Popen(listen, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as again:
        assert again.stdout is not None
        assert json.loads(again.stdout.readline())["event"]["data"]["id"] == made
        again.kill()


def test_a_listener_whose_receiver_is_away_ends_when_it_is_told_to_once(
    records: Command, api: ApiOf, session: dict[str, Any]
) -> None:
    with Receiver() as receiver:
        pass
    with listening(receiver, os.devnull) as listener:
        assert listener.stderr is not None
        make_finding(api(), session["id"])
        assert b"does not answer" in listener.stderr.readline()
        listener.send_signal(signal.SIGTERM)
        assert listener.wait(LONG_ENOUGH) == 130


@pytest.mark.parametrize("arguments", [["findings", "list"], ["--json", "findings", "list"]])
def test_what_an_encoding_lacks_is_written_by_its_number(
    records: Command,
    api: ApiOf,
    session: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
) -> None:
    make_finding(api(), session["id"], title="Zażółć 🐧")
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    done = subprocess.run(
        [sys.executable, "-m", "record_service", *arguments], capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    said = done.stdout.decode("latin-1")
    if "--json" in arguments:
        assert "Zażółć 🐧" in json.dumps(json.loads(said), ensure_ascii=False)
    else:
        assert r"Za\u017có\u0142\u0107 \U0001f427" in said


def test_without_a_command_its_help_is_shown_in_lines(records_process: Command) -> None:
    for group in ([], ["webhooks"]):
        said = records_process(*group)
        assert said.code == 2
        assert "Usage: record-service" in (said.out + said.err).splitlines()[0]
        assert len((said.out + said.err).splitlines()) > 5
