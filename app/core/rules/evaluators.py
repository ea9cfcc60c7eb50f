"""Evaluators: processes that run tenants' rules, each ended when a rule costs too much.

One is for quick tenants, one for those whose rules were slow, one for jobs and checks. A batch is
judged as far as its time reaches; a rule that ended its process is left out on that subject.
"""

import json
import mmap
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from app.core.rules.language import LENGTH, MARK, Match
from app.errors import Busy, EvaluatorLost

CPU_SECONDS = 0.2
"""CPU time that a rule may take on a record, before it is ended."""

CPU_SECONDS_A_BYTE = 0.1 / (1024 * 1024)
"""What is added for each byte of the record's bundle, which must be taken apart first."""

MOST_ENDED = 3
"""A rule that was ended so often is not evaluated further."""

TOO_COSTLY = "It took too much time or memory and was ended."
_UNREADABLE = "The record is too large to be evaluated."
# Of the quick evaluator: a subject that takes longer is left to a slow one, and is not judged here.
_QUICK_SECONDS = 0.4
# At the same rule for so long, its host does not run it: the limit of a rule is CPU time.
_WAIT_SECONDS, _MOST_WAITS = 3.0, 10
_MOST_LOST = 3
_LARGE = 1024 * 1024
_ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class RuleText:
    """What is evaluated of a rule's version."""

    on: str
    when: str
    title: str
    detail: str | None
    dedupe: str | None


@dataclass(frozen=True)
class Subject:
    """A record or session to judge: its facts, its bundle's bytes, and the rules by their places.

    `bundle` is None for a session, and empty for a record whose content has expired.
    """

    facts: Mapping[str, Any]
    bundle: bytes | None
    rules: Sequence[int]


@dataclass(frozen=True)
class Verdict:
    """What came of one rule on one subject; `matches` describes the first 20 that `matched`."""

    matched: int
    matches: Sequence[Match]
    errors: int
    error: str | None
    step: int | None = None
    ended: bool = False


@dataclass
class Judged:
    """The verdicts on the first subjects of a batch, by the rules' places.

    `steps` is how many each subject has, `micros` how long all took. `slow`: some rule is.
    """

    verdicts: list[dict[int, Verdict]] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    micros: int = 0
    slow: bool = False


class _Process:
    """One running child; any method raises `EOFError` once it has ended."""

    def __init__(self) -> None:
        with tempfile.TemporaryFile() as page:
            marker = page.fileno()
            page.truncate(mmap.PAGESIZE)
            self._page = mmap.mmap(marker, mmap.PAGESIZE)
            # No secret of ours is in its environment.
            self._child = subprocess.Popen(  # noqa: S603  # our own module
                [sys.executable, "-m", "app.core.rules.child", str(marker)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=1 << 16,
                pass_fds=(marker,),
                cwd=_ROOT,
                env={"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(_ROOT)},
            )
        assert self._child.stdin is not None  # noqa: S101  # narrows: it is a pipe
        assert self._child.stdout is not None  # noqa: S101  # narrows: it is a pipe
        self._input, self._output = self._child.stdin, self._child.stdout
        self._read = bytearray()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._child.pid

    def ask(self, request: Mapping[str, Any], parts: Sequence[bytes] = ()) -> None:
        """Send a request; the child reads all of it before it answers."""
        try:
            for each in (json.dumps(request).encode(), *parts):
                self._input.write(LENGTH.pack(len(each)))
                self._input.write(each)
            self._input.flush()
        except BrokenPipeError:
            raise EOFError from None

    def answer(self, alive: Callable[[], object] = lambda: None) -> Any:
        """Return the next answer; calls `alive` now and then while there is none."""
        (size,) = LENGTH.unpack(self._take(LENGTH.size, alive))
        return json.loads(self._take(size, alive))

    def at(self) -> tuple[int, int]:
        """Return the places of the subject and rule that it was at; -1 for none."""
        subject, rule = MARK.unpack_from(self._page, 0)
        return subject, rule

    def mark(self) -> None:
        """Note that it is at nothing."""
        MARK.pack_into(self._page, 0, -1, -1)

    def close(self) -> None:
        """End it."""
        self._child.kill()
        self._child.wait()
        with suppress(BrokenPipeError):
            # What was still to be written to it.
            self._input.close()
        self._output.close()
        self._page.close()

    def _take(self, size: int, alive: Callable[[], object]) -> bytes:
        at, waits = None, 0
        while len(self._read) < size:
            if not select.select([self._output], [], [], _WAIT_SECONDS)[0]:
                at, waits = self.at(), waits + 1 if at == self.at() else 0
                if waits > _MOST_WAITS:
                    # Whatever it was at has not used its time: it is lost, and no rule to blame.
                    self.mark()
                    raise EOFError
                alive()
                continue
            more = os.read(self._output.fileno(), 1 << 16)
            if not more:
                raise EOFError
            self._read += more
        taken = bytes(self._read[:size])
        del self._read[:size]
        return taken


class _Lane:
    """One evaluator, started when it is needed; one thread uses it at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._process: _Process | None = None

    def running(self) -> _Process:
        """Return its process, a new one if there is none."""
        if self._process is None:
            self._process = _Process()
        return self._process

    def end(self) -> None:
        """End its process; the next use starts another."""
        if self._process is not None:
            self._process.close()
            self._process = None


QUICK: Final = "quick"
SLOW: Final = "slow"
BULK: Final = "bulk"


class Evaluators:
    """The evaluators of one process, shared by its threads; `close` ends them."""

    def __init__(self) -> None:
        """Prepare them; none is started yet."""
        self._lanes = {name: _Lane() for name in (QUICK, SLOW, BULK)}

    def check(self, on: str, fields: Mapping[str, str | None]) -> dict[str, tuple[int, int, str]]:
        """Return line, column and reason of each field of a rule that does not compile.

        Raises `EvaluatorLost` and `Busy`.
        """
        with self._taken(QUICK, 2.0) as lane:
            for _ in range(2):
                process = lane.running()
                try:
                    request = {"do": "check", "on": on, "fields": dict(fields), "seconds": 1.0}
                    process.ask(request)
                    return {name: tuple(each) for name, each in process.answer().items()}
                except EOFError:
                    # It may have ended before; a text that ends it twice is at fault or its host.
                    lane.end()
        raise EvaluatorLost("The process that checks rules ended twice.")

    def judge(
        self,
        name: str,
        rules: Sequence[RuleText],
        subjects: Sequence[Subject],
        *,
        seconds: float,
        ended: Sequence[int] = (),
        patience: float = 1.0,
        alive: Callable[[], object] = lambda: None,
    ) -> Judged:
        """Judge subjects in their order for about so many seconds.

        At least the first, but for `QUICK`: that leaves it out, `slow`, where a rule takes long or
        was ended. `ended` is how often each rule was ended before; `alive` is called now and then
        while a subject takes long. Raises `Busy` when the evaluator is not free within `patience`
        seconds, and `EvaluatorLost` when it ends at no rule's work.
        """
        with self._taken(name, patience) as lane:
            run = _Run(lane, rules, subjects, time.monotonic() + seconds, ended)
            run.quick, run.alive = name == QUICK, alive
            try:
                run.finish()
            except BaseException:
                lane.end()
                raise
            if any(len(each.bundle or b"") > _LARGE for each in subjects):
                # It would keep the memory that a large record took.
                lane.end()
            return run.judged

    def close(self) -> None:
        """End every process."""
        for lane in self._lanes.values():
            lane.end()

    @contextmanager
    def _taken(self, name: str, patience: float) -> Iterator[_Lane]:
        lane = self._lanes[name]
        if not lane.lock.acquire(timeout=patience):
            raise Busy("Other rules are being evaluated; try again in a moment.")
        try:
            yield lane
        finally:
            lane.lock.release()


class _Run:
    """A batch on its way through as many processes as it takes."""

    def __init__(
        self,
        lane: _Lane,
        rules: Sequence[RuleText],
        subjects: Sequence[Subject],
        until: float,
        ended: Sequence[int],
    ) -> None:
        self.judged = Judged()
        self._lane, self._rules, self._subjects, self._until = lane, rules, subjects, until
        self._ended = Counter(dict(enumerate(ended)))
        self._skip: dict[tuple[int, int], Verdict] = {}
        self._lost = 0
        self.quick = False
        self.alive: Callable[[], object] = lambda: None

    def finish(self) -> None:
        """Judge until all is judged, or the time is over and something is."""
        done = not self._subjects
        while not done:
            process = self._lane.running()
            process.mark()
            try:
                self._send(process)
                while (answer := process.answer(self.alive)) not in (None, "slow"):
                    self._take(answer)
                self.judged.slow |= answer == "slow"
                done = True
            except EOFError:
                self._blame(process.at())
                self.alive()
                late = self.judged.verdicts and time.monotonic() > self._until
                done = bool(late) or (self.quick and self.judged.slow)

    def _send(self, process: _Process) -> None:
        first = len(self.judged.verdicts)
        rest = self._subjects[first:]
        gone = {rule for rule, times in self._ended.items() if times >= MOST_ENDED}
        parts: list[bytes] = []
        for each in rest:
            kind = b"s" if each.bundle is None else b"r"
            parts += (kind + json.dumps(each.facts).encode(), each.bundle or b"")
        request = {
            "do": "judge",
            "rules": [vars(rule) for rule in self._rules],
            "first": first,
            "count": len(rest),
            "apply": [[at for at in each.rules if at not in gone] for each in rest],
            "skip": list(self._skip),
            "seconds": max(0.0, self._until - time.monotonic()),
            "cpu_a_subject": _QUICK_SECONDS if self.quick else 1e9,
            "cpu": CPU_SECONDS,
            "cpu_a_byte": CPU_SECONDS_A_BYTE,
        }
        process.ask(request, parts)

    def _take(self, answer: Any) -> None:
        """Take the verdicts on one subject."""
        place = len(self.judged.verdicts)
        steps, micros, found = answer
        verdicts = {rule: each for (subject, rule), each in self._skip.items() if subject == place}
        for rule, came in found:
            matches = [Match(*each) for each in came.pop("matches")]
            verdicts[rule] = Verdict(matches=matches, **came)
        self.judged.verdicts.append(verdicts)
        self.judged.steps.append(steps)
        self.judged.micros += micros

    def _blame(self, at: tuple[int, int]) -> None:
        """Note what the process was at when it ended; the rest goes to a new one."""
        self._lane.end()
        subject, rule = at
        if subject < len(self.judged.verdicts):
            # It ended before it began: killed while it waited, or it cannot start.
            self._lost += 1
            if self._lost == _MOST_LOST:
                raise EvaluatorLost("The process that evaluates rules ended three times.")
            return
        self.judged.slow = True
        if rule < 0:
            for each in self._subjects[subject].rules:
                self._skip[subject, each] = Verdict(0, (), 1, _UNREADABLE)
            return
        self._ended[rule] += 1
        self._skip[subject, rule] = Verdict(0, (), 1, TOO_COSTLY, ended=True)
