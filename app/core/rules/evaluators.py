"""Evaluators: processes that run tenants' rules, each ended when a rule costs too much.

One is for quick tenants, one for those whose rules were slow, one for jobs and checks. A batch is
judged as far as its time reaches; a rule that ended its process is left out on that subject.
"""

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, Final

from app.core.rules.language import Match, RuleText, mark, marked
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


class _Evaluator:
    """A child process, started when it is asked, and the file in which it says at which rule it is.

    One thread uses it at a time.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.child: subprocess.Popen[bytes] | None = None

    def _start(self) -> None:
        self._pipe, theirs = Pipe()
        self._marker = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process
        mark(self._marker.fileno(), -1, -1)
        fds = (theirs.fileno(), self._marker.fileno())
        # No secret of ours is in its environment.
        self.child = subprocess.Popen(  # noqa: S603  # our own module
            [sys.executable, "-m", "app.core.rules.child", *map(str, fds)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=fds,
            cwd=_ROOT,
            env={"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(_ROOT)},
        )
        theirs.close()

    @property
    def at(self) -> tuple[int, int]:
        """The places of the subject and rule that it is at; -1 for none."""
        return marked(self._marker.fileno())

    def ask(self, *request: object) -> None:
        """Send a request. Raises `EOFError` once the child has ended."""
        if self.child is None:
            self._start()
        mark(self._marker.fileno(), -1, -1)
        try:
            self._pipe.send(request)
        except OSError:
            raise EOFError from None

    def answer(self, alive: Callable[[], object] = lambda: None) -> Any:
        """Return the next answer; calls `alive` now and then while there is none.

        Raises `EOFError` once the child has ended, or its host does not run it.
        """
        at, waits = self.at, 0
        try:
            while not self._pipe.poll(_WAIT_SECONDS):
                at, waits = self.at, waits + 1 if at == self.at else 0
                if waits > _MOST_WAITS:
                    # Whatever it was at has not used its time: it is lost, and no rule to blame.
                    mark(self._marker.fileno(), -1, -1)
                    raise EOFError
                alive()
            return json.loads(self._pipe.recv_bytes())
        except OSError:
            raise EOFError from None

    def end(self) -> None:
        """End the child; the next request starts another."""
        if self.child is not None:
            self.child.kill()
            self.child.wait()
            self._pipe.close()
            self._marker.close()
            self.child = None


QUICK: Final = "quick"
SLOW: Final = "slow"
BULK: Final = "bulk"


class Evaluators:
    """The evaluators of one process, shared by its threads; `close` ends them."""

    def __init__(self) -> None:
        """Prepare them; none is started yet."""
        self._all = {name: _Evaluator() for name in (QUICK, SLOW, BULK)}

    def check(self, on: str, fields: Mapping[str, str | None]) -> dict[str, tuple[int, int, str]]:
        """Return line, column and reason of each field of a rule that does not compile.

        Raises `EvaluatorLost` and `Busy`.
        """
        with self._taken(QUICK, 2.0) as evaluator:
            for _ in range(2):
                try:
                    evaluator.ask("check", on, dict(fields), 1.0)
                    return {name: tuple(each) for name, each in evaluator.answer().items()}
                except EOFError:
                    # It may have ended before; a text that ends it twice is at fault or its host.
                    evaluator.end()
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
        with self._taken(name, patience) as evaluator:
            run = _Run(evaluator, rules, subjects, ended, quick=name == QUICK)
            try:
                run.finish(time.monotonic() + seconds, alive)
            except BaseException:
                evaluator.end()
                raise
            if any(len(each.bundle or b"") > _LARGE for each in subjects):
                # It would keep the memory that a large record took.
                evaluator.end()
            return run.judged

    def close(self) -> None:
        """End every process."""
        for evaluator in self._all.values():
            evaluator.end()

    @contextmanager
    def _taken(self, name: str, patience: float) -> Iterator[_Evaluator]:
        evaluator = self._all[name]
        if not evaluator.lock.acquire(timeout=patience):
            raise Busy("Other rules are being evaluated; try again in a moment.")
        try:
            yield evaluator
        finally:
            evaluator.lock.release()


class _Run:
    """A batch on its way through as many processes as it takes."""

    def __init__(
        self,
        evaluator: _Evaluator,
        rules: Sequence[RuleText],
        subjects: Sequence[Subject],
        ended: Sequence[int],
        *,
        quick: bool,
    ) -> None:
        self.judged = Judged()
        self._evaluator, self._rules, self._subjects = evaluator, rules, subjects
        self._quick = quick
        self._ended = Counter(dict(enumerate(ended)))
        self._blamed: dict[tuple[int, int], Verdict] = {}
        self._lost = 0

    def finish(self, until: float, alive: Callable[[], object]) -> None:
        """Judge until all is judged, or the time is over and something is."""
        end = None if self._subjects else "done"
        while end is None:
            most = _QUICK_SECONDS if self._quick else float("inf")
            left = max(0.0, until - time.monotonic())
            try:
                self._evaluator.ask("judge", dict(enumerate(self._rules)), self._rest(), left, most)
                while end is None:
                    answers, end = self._evaluator.answer(alive)
                    for each in answers:
                        self._take(*each)
                self.judged.slow |= end == "slow"
            except EOFError:
                self._blame(*self._evaluator.at)
                alive()
                late = self.judged.verdicts and time.monotonic() > until
                end = "late" if late or (self._quick and self.judged.slow) else None

    def _rest(self) -> list[tuple[object, ...]]:
        """Return the subjects that are not judged yet, each without the rules that ended."""
        first = len(self.judged.verdicts)
        gone = {rule for rule, times in self._ended.items() if times >= MOST_ENDED}
        return [
            (
                place,
                [at for at in each.rules if at not in gone and (place, at) not in self._blamed],
                each.facts,
                each.bundle,
                CPU_SECONDS + CPU_SECONDS_A_BYTE * len(each.bundle or b""),
            )
            for place, each in enumerate(self._subjects[first:], first)
        ]

    def _take(self, steps: int, micros: int, found: Sequence[tuple[int, dict[str, Any]]]) -> None:
        """Take the verdicts on one subject."""
        place = len(self.judged.verdicts)
        verdicts = {rule: each for (at, rule), each in self._blamed.items() if at == place}
        for rule, came in found:
            matches = [Match(*each) for each in came.pop("matches")]
            verdicts[rule] = Verdict(matches=matches, **came)
        self.judged.verdicts.append(verdicts)
        self.judged.steps.append(steps)
        self.judged.micros += micros

    def _blame(self, subject: int, rule: int) -> None:
        """Note what the process was at when it ended; the rest goes to a new one."""
        self._evaluator.end()
        if subject < len(self.judged.verdicts):
            # It ended before it began: killed while it waited, or it cannot start.
            self._lost += 1
            if self._lost == _MOST_LOST:
                raise EvaluatorLost("The process that evaluates rules ended three times.")
            return
        self.judged.slow = True
        if rule < 0:
            for each in self._subjects[subject].rules:
                self._blamed[subject, each] = Verdict(0, (), 1, _UNREADABLE)
            return
        self._ended[rule] += 1
        self._blamed[subject, rule] = Verdict(0, (), 1, TOO_COSTLY, ended=True)
