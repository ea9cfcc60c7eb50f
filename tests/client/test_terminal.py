"""The command on a terminal: tables, colours, a progress bar, questions, Ctrl-C, completion."""

import fcntl
import json
import os
import pty
import re
import select
import shlex
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.client.conftest import Command
from tests.support.callers.api import ApiOf
from tests.support.callers.making import make_agent, make_finding, make_record, make_session
from tests.support.faults import LONG_ENOUGH, until
from tests.support.servers.receivers import Receiver

# Longer than a command takes to end.
_AGAIN_SECONDS = 5.0
COLOUR = re.compile(r"\x1b\[[0-9;]*m")

# Ctrl-C is a signal to those whose terminal it is.
_OWN_TERMINAL = """
import fcntl, runpy, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
runpy.run_module("record_service", run_name="__main__", alter_sys=True)
"""


class Terminal:
    """A run of the command on a pseudo-terminal of 100 columns."""

    def __init__(self, arguments: Sequence[str], environ: dict[str, str]) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-c", _OWN_TERMINAL, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "TERM": "xterm", **environ},
            start_new_session=True,
        )
        os.close(slave)
        self._read_so_far = b""

    @property
    def shown(self) -> str:
        """All that was shown until now."""
        return self._read_so_far.decode("utf-8", "replace")

    def until(self, words: str) -> None:
        """Read what is shown until these words are."""
        give_up_at = time.monotonic() + LONG_ENOUGH
        while words not in self.shown:
            assert time.monotonic() < give_up_at, self.shown
            assert self._read(), self.shown

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def end(self) -> int:
        """Read the rest; return the exit code."""
        while self._read():
            pass
        os.close(self._master)
        return self.process.wait(LONG_ENOUGH)

    def interrupt(self) -> int:
        """Press Ctrl-C until the command ends; return the exit code.

        CPython misses a signal that arrives just before it blocks to read a line.
        """
        while self.process.poll() is None:
            self.type("\x03")
            while self._read(_AGAIN_SECONDS):
                pass
        return self.end()

    def _read(self, seconds: float = LONG_ENOUGH) -> bool:
        if not select.select([self._master], [], [], seconds)[0]:
            return False
        try:
            read = os.read(self._master, 65536)
        except OSError:
            # As Linux says that the other side is closed.
            return False
        self._read_so_far += read
        return bool(read)


@contextmanager
def on_terminal(*arguments: str, **environ: str) -> Iterator[Terminal]:
    terminal = Terminal(arguments, environ)
    yield terminal
    if terminal.process.poll() is None:
        terminal.process.kill()
        terminal.process.wait()


def shown(*arguments: str, **environ: str) -> str:
    with on_terminal(*arguments, **environ) as terminal:
        assert terminal.end() == 0, terminal.shown
        return terminal.shown


def test_a_list_is_a_table_as_wide_as_the_terminal_and_coloured(
    records: Command, api: ApiOf, session: dict[str, Any]
) -> None:
    make_finding(api(), session["id"], title="long " * 60, severity="critical")

    coloured = shown("findings", "list")
    plain = shown("findings", "list", NO_COLOR="1")
    heading, row = plain.splitlines()
    assert heading.split()[:4] == ["ID", "SEVERITY", "RULE", "TITLE"]
    assert (len(row) <= 100, "…" in row) == (True, True)
    assert "\x1b" not in plain
    assert "\x1b[31mcritical\x1b[0m" in coloured
    assert COLOUR.sub("", coloured) == plain
    assert shown("agents", "list", "--json", NO_COLOR="1").replace("\r\n", "\n") == (
        records_json(api) + "\n"
    )


STEERING = "\x1b]0;x\x07 \x9b31m \x9d0;x\x9c \u202e \u2066 \u2028 \u2029 \u200b \U000e0041"


def test_nothing_that_an_agent_wrote_steers_the_terminal(records: Command, api: ApiOf) -> None:
    agent = make_agent(api(), name=STEERING)
    session = make_session(api(), agent["id"], principal=STEERING, title=STEERING)
    step = {
        "name": STEERING,
        "kind": "tool",
        "started_at": "2026-01-31T12:00:00Z",
        "ended_at": "2026-01-31T12:00:02Z",
        "status": "error",
        "events": [{"name": STEERING, "at": "2026-01-31T12:00:01Z"}],
    }
    title = f"giraffe {STEERING}"
    record = make_record(
        api(), session["id"], title=title, kind=STEERING, content={"a": STEERING}, steps=[step]
    )["id"]
    make_finding(api(), session["id"], record_id=record, title=title, rule=STEERING)
    lists = ("records list", f"records show {record}", "search giraffe", "findings tail")
    exports = (f"bundle {record}", f"prov {record}", f"otlp {record}", f"otlp {record} --logs")
    for words in (*exports, "agents list", *lists, *(f"{each} --json" for each in lists)):
        seen = shown(*words.split(), NO_COLOR="1").replace("\r\n", "")
        # A table may cut its cells before that one.
        assert "\\u001b" in seen, words
        assert {each for each in seen if not each.isprintable()} == set(), words
    listed = shown("findings", "list", "--json", NO_COLOR="1")
    assert json.loads(listed)["data"][0]["title"] == title


def test_in_a_pipe_an_export_is_exact(
    records: Command, api: ApiOf, session: dict[str, Any], tmp_path: Path
) -> None:
    record = make_record(api(), session["id"], content={"a": STEERING})["id"]
    for command, name in (
        ("bundle", "bundle"),
        ("prov", "prov.json"),
        ("otlp", "otlp-traces.json"),
    ):
        exact = api().get(f"/v1/records/{record}/{name}").data
        file = tmp_path / command
        piped = f"{sys.executable} -m record_service {command} {record}"
        subprocess.run(
            ["bash", "-c", f"{piped} > {file}; {piped} | cat > {file}.piped"], check=True
        )
        assert file.read_bytes() == exact
        assert Path(f"{file}.piped").read_bytes() == exact


def records_json(api: ApiOf) -> str:
    listed = api().get("/v1/agents").json
    rows = ", ".join(json.dumps(row, ensure_ascii=False) for row in listed["data"])
    return f'{{"data": [{rows}], "next_cursor": null}}'


def test_an_empty_list_says_so(records: Command) -> None:
    assert "Nothing found." in shown("findings", "list")
    assert records("findings", "list").out == ""


@pytest.mark.parametrize(("answer", "code", "gone"), [("y\n", 0, True), ("\n", 1, False)])
def test_what_destroys_is_asked_for(
    records: Command, api: ApiOf, answer: str, code: int, gone: bool
) -> None:
    key = api().post("/v1/keys", {"name": "n", "role": "read"}).json
    with on_terminal("keys", "revoke", key["id"]) as terminal:
        terminal.until("[y/N]")
        terminal.type(answer)
        assert terminal.end() == code
    assert (api(key["key"]).get("/v1/keys/self").status_code == 401) is gone


def written(folder: Path, count: int) -> list[str]:
    files = [str(folder / f"{number}") for number in range(count)]
    for file in files:
        Path(file).write_text(file)
    return files


def test_ctrl_c_at_a_question_and_at_work_ends_with_130(
    records: Command, api: ApiOf, session: dict[str, Any], tmp_path: Path
) -> None:
    with on_terminal("keys", "revoke", "key_x") as terminal:
        terminal.until("[y/N]")
        assert terminal.interrupt() == 130
    with on_terminal("findings", "tail", "-f") as terminal:
        make_finding(api(), session["id"], title="seen")
        terminal.until("seen")
        terminal.type("\x03")
        assert terminal.end() == 130
    assert "Traceback" not in terminal.shown


def test_a_push_shows_how_far_it_is_and_goes_on_where_it_was_interrupted(
    records: Command, api: ApiOf, session: dict[str, Any], tmp_path: Path
) -> None:
    files = written(tmp_path, 120)
    push = ["record", "push", "--session", session["id"], *files]

    with on_terminal(*push) as terminal:
        terminal.until("/120")
        terminal.type("\x03")
        assert terminal.end() == 130, terminal.shown
    seen = shown(*push)
    assert "120/120" in seen
    assert " were there, 0 not." in seen

    listed = api().get(f"/v1/records?session_id={session['id']}&limit=200").json["data"]
    assert sorted(row["title"] for row in listed) == sorted(map(str, range(120)))


def test_ctrl_c_while_a_service_does_not_answer_ends_at_once(
    records: Command,
) -> None:
    with Receiver(lambda _: None) as silent:
        url = silent.url("")
        with on_terminal("--patience", "600", "whoami", SERVICE_BASE_URL=url) as terminal:
            until(lambda: len(silent.requests) > 1)
            terminal.type("\x03")
            assert terminal.end() == 130


@pytest.mark.parametrize("name", ["record-service", "records"])
def test_bash_completes_commands_and_options_of_the_name_it_was_asked_by(
    records: Command, tmp_path: Path, name: str
) -> None:
    program = tmp_path / name
    main = "from record_service.cli import main; main()"
    program.write_text(f"#!{sys.executable}\n{main}\n")
    program.chmod(0o755)
    script = f"""
        export PATH={tmp_path}:$PATH
        eval "$({name} completion bash)"
        complete -p {name}
        complete_words() {{
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
            _{name.replace("-", "_")}_completion {name}; echo "${{COMPREPLY[@]}}"
        }}
        complete_words {name} sess
        complete_words {name} webhooks liste
        complete_words {name} session complete --out
        complete_words {name} session complete --outcome fai
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.stdout.splitlines()[-4:] == ["sessions", "listen", "--outcome", "failed"]
    for shell in ("zsh", "fish"):
        assert "_RECORD_SERVICE_COMPLETE" in records("completion", shell).out


def code_piped_into(reader: str, *arguments: str) -> str:
    """Run the command into a pipe; return its exit code."""
    piped = f"{shlex.join([sys.executable, '-m', 'record_service', *arguments])} | {reader}"
    script = f'{piped} >&2; echo "${{PIPESTATUS[0]}}"'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    return done.stdout.strip()


def test_a_push_goes_on_without_a_reader_of_its_output(
    records: Command, api: ApiOf, session: dict[str, Any], tmp_path: Path
) -> None:
    files = written(tmp_path, 20)

    assert code_piped_into(":", "record", "push", "--session", session["id"], *files) == "0"

    listed = api().get(f"/v1/records?session_id={session['id']}&limit=200").json["data"]
    assert sorted(row["title"] for row in listed) == sorted(map(str, range(20)))


@pytest.mark.parametrize(
    ("reader", "arguments", "code"),
    [
        (":", ["audit", "verify", "--head", f"1:{'0' * 64}", "--json"], "1"),
        ("head -n 1", ["agents", "list", "--all"], "0"),
    ],
)
def test_a_reader_that_has_enough_changes_no_exit_code(
    records: Command, api: ApiOf, reader: str, arguments: list[str], code: str
) -> None:
    for _ in range(3):
        make_agent(api())
    assert code_piped_into(reader, *arguments) == code
