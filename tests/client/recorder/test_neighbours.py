"""A spool's folder beside files, processes and sessions that are in its way."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from record_service.recorder import delivery, places
from record_service.recorder import spool as spools

from dev.stack import ROOT
from tests.client.recorder.conftest import Arrived, MakeRecorder


def test_a_file_that_cannot_be_opened_keeps_no_other_waiting(
    recorder: MakeRecorder, spool: Path
) -> None:
    dead, living = recorder(base_url="http://127.0.0.1:9"), recorder()
    dead.close(0.1)
    (spool / "spool" / "000.sqlite").mkdir()
    assert living.flush(30)
    assert living.stats()["error"] is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_forked_while_a_dead_process_s_file_is_sent_holds_it_no_longer(
    recorder: MakeRecorder, spool: Path
) -> None:
    dead = recorder(base_url="http://127.0.0.1:9")
    with dead.session("chat"), dead.session("chat").record("run", "left"):
        pass
    dead.close(0.1)
    sending = spools.left(spool / "spool", dead._owner, "", spools.MOST_BYTES)
    path = next(sending).path
    ends, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writes)
        os.read(ends, 1)
        os._exit(0)
    sending.close()
    try:
        places.Lock(path.with_suffix(".lock")).release()
    finally:
        os.close(writes)
        os.waitpid(child, 0)
        os.close(ends)


def test_what_is_known_of_sessions_is_bounded(
    recorder: MakeRecorder, arrived: Arrived, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "MOST_KNOWN", 3)
    it = recorder()
    for number in [*range(6), *range(6)]:
        with it.session(f"chat-{number}").record("run", "one of two"):
            pass
    assert it.flush(60)
    courier = it._sender._courier
    assert courier is not None
    assert len(courier._ids) <= 3
    assert len(arrived.records()) == 12
    assert len(arrived.list("/v1/sessions")) == 6


def test_a_spool_that_cannot_be_opened_is_logged_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    program = """
import sys
import threading
from record_service.recorder import recorder
recorder._REOPEN_SECONDS = 0.0
it = recorder.Recorder("a", base_url="http://127.0.0.1:9", key="k", spool=sys.argv[1])
for _ in range(10):
    it.session("chat").complete()
assert it.stats()["dropped"] == 10
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "file")],
        env={**os.environ, "PYTHONPATH": str(ROOT / "client")},
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert done.stderr.count("cannot be opened") == 1, done.stderr


def test_a_spool_is_read_beside_a_file_without_tables_yet(tmp_path: Path) -> None:
    (tmp_path / "a#b?.sqlite").touch()
    assert spools.held(tmp_path)["waiting"] == 0
    assert list(spools.dead_letters(tmp_path)) == []
