"""The process that compiles and evaluates tenants' rules: `python -m …child PIPE FILE`.

It answers requests from the pipe and ends with it. The kernel ends it for a rule that takes too
much time; memory is limited too. The file says which rule it is at. It has no environment, no
connection to a store and no key.
"""

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from multiprocessing.connection import Connection
from typing import Any

from cel_expr_python import cel

from app.core.rules.compiling import cause, check, compiled, environment, text_of
from app.core.rules.language import (
    MOST_MATCHES,
    VARIABLES,
    Erred,
    Match,
    RuleText,
    mark,
    pieces,
)

MEMORY = 768 * 1024 * 1024
"""Bytes of address space: a record of 8 MiB takes 500 MB in the worst form."""

MOST_TEXT = 10_000
_AT_ONCE = 16


class Rule:
    """A rule, compiled. Raises `RuntimeError` for one that does not compile any more."""

    def __init__(self, text: RuleText) -> None:
        self.on = text.on
        self._text = text
        self._when = compiled(text.on, text.when)
        self._dedupe = None if text.dedupe is None else compiled(text.on, text.dedupe)

    def matches(self, seen: Any) -> bool:
        """Say whether the condition holds for an activation. Raises `Erred`."""
        value = _value(self._when, seen)
        if not isinstance(value, bool):
            raise Erred(f"`when` gives {text_of(value)[:100]}, neither true nor false.")
        return value

    def describe(self, seen: Any, step: int | None, what: dict[str, str]) -> tuple[Match, str]:
        """Return the match, and the error of a template: the finding comes all the same."""
        errors: list[str] = []

        def written(template: str) -> str:
            return "".join(
                text if begins is None else text_of(_value(compiled(self.on, text), seen))
                for text, begins in list(pieces(template))
            )

        def tried(name: str, make: Callable[[], str], instead: str | None) -> str | None:
            try:
                return make()
            except (Erred, RuntimeError) as error:
                errors.append(f"{name}: {cause(str(error))}")
                return instead

        title = tried("title", lambda: written(self._text.title), self._text.title) or ""
        template = self._text.detail
        detail = template and tried("detail", lambda: written(template)[:MOST_TEXT], template)
        dedupe = self._dedupe and tried("dedupe", lambda: _hashed(_value(self._dedupe, seen)), None)
        one_line = " ".join(title.replace("\0", " ").split()) or "(an empty title)"
        match = Match(step, one_line[:500], detail and detail.replace("\0", " "), dedupe, what)
        return match, "; ".join(errors)


def _hashed(value: object) -> str:
    return sha256(text_of(value).encode("utf-8", "surrogatepass")).hexdigest()


@lru_cache(maxsize=2000)
def _made(text: RuleText) -> Rule | str:
    """Return a rule, or why it does not compile any more: an older library took it."""
    try:
        return Rule(text)
    except RuntimeError as error:
        return cause(str(error))


def _value(expression: Any, seen: Any) -> Any:
    found = expression.eval(seen)
    value = found.value()
    if value is True or value is False:
        return value
    if found.type() == cel.Type.ERROR:
        raise Erred(str(value))
    return found.plain_value()


class Subject:
    """A record or a session as rules see it: activations are made once for all rules."""

    def __init__(self, facts: Mapping[str, Any], bundle: bytes | None) -> None:
        """Take its JSON apart; `bundle` is None for a session, empty for a record that expired."""
        self.expired = bundle == b""
        self.steps: list[dict[str, Any]] = []
        self._facts = facts
        self._by_step: dict[int, Any] = {}
        on = "session"
        seen: dict[str, object] = {"session": facts}
        if bundle is not None:
            read = json.loads(bundle) if bundle else {"content": None, "steps": []}
            self.steps = read["steps"]
            on = "record"
            seen = {"record": facts, "content": read["content"], "steps": self.steps}
        self.whole = environment(VARIABLES[on]).Activation(seen)

    def step(self, number: int) -> Any:
        """Return the activation of one step."""
        if number not in self._by_step:
            seen = {"record": self._facts, "step": self.steps[number]}
            self._by_step[number] = environment(VARIABLES["step"]).Activation(seen)
        return self._by_step[number]

    def judge(self, rule: Rule | str) -> dict[str, Any] | None:
        """Return what came of a rule, or of one that does not compile; None for nothing."""
        if isinstance(rule, str) or self.expired:
            why = rule if isinstance(rule, str) else "Its content has expired or cannot be read."
            return {"matched": 0, "matches": [], "errors": 1, "error": why, "step": None}
        matched = 0
        matches: list[Match] = []
        errors: list[tuple[str, int | None]] = []
        for number in range(len(self.steps)) if rule.on == "step" else (None,):
            seen = self.whole if number is None else self.step(number)
            try:
                if not rule.matches(seen):
                    continue
                matched += 1
                if len(matches) == MOST_MATCHES:
                    continue
                match, error = rule.describe(seen, number, self._what(number))
                matches.append(match)
            except (Erred, RuntimeError) as caught:
                error = cause(str(caught))
            if error:
                errors.append((error, number))
        if not matched and not errors:
            return None
        first, where = errors[0] if errors else (None, None)
        found = {"matched": matched, "matches": matches, "errors": len(errors)}
        return {**found, "error": first, "step": where}

    def _what(self, step: int | None) -> dict[str, str]:
        """Return what matched, in a few words."""
        names, source = ("kind", "title", "outcome"), self._facts
        if step is not None:
            names, source = ("name", "kind", "status"), self.steps[step]
        return {name: str(source[name])[:500] for name in names if source.get(name) is not None}


def _judge(
    pipe: Connection,
    marker: int,
    rules: Mapping[int, RuleText],
    subjects: Sequence[tuple[int, Sequence[int], Mapping[str, Any], bytes | None, float]],
    seconds: float,
    most: float,
) -> None:
    """Answer for one subject after the other: its steps, microseconds, and what came of each rule.

    A subject has its place, the places of its rules, its facts and bundle, and the CPU seconds of
    one rule. The last answers come with "done", once `seconds` are over also for the first
    subjects; or with "slow" before a subject that took more than `most` CPU seconds.
    """
    until = time.monotonic() + seconds
    answers: list[object] = []

    def send(end: str | None) -> None:
        pipe.send_bytes(json.dumps([answers, end]).encode())
        answers.clear()

    for count, (place, wanted, facts, bundle, limit) in enumerate(subjects):
        if count and time.monotonic() > until:
            break
        mark(marker, place, -1)
        _limit(limit)
        subject = Subject(facts, bundle)
        found: list[object] = []
        began, used = time.monotonic(), time.process_time()
        for at in wanted:
            mark(marker, place, at)
            _limit(limit)
            came = subject.judge(_made(rules[at]))
            if came is not None:
                found.append((at, came))
            if time.process_time() > used + most:
                send("slow")
                return
        _limit(0)
        answers.append([len(subject.steps), int((time.monotonic() - began) * 1e6), found])
        if len(answers) == _AT_ONCE:
            send(None)
    send("done")


def _limit(seconds: float) -> None:
    """Have the kernel end this process after so many seconds of its time; 0: no limit."""
    signal.setitimer(signal.ITIMER_PROF, seconds)


def _serve(pipe: Connection, marker: int) -> None:
    """Answer one request after the other, in JSON, until the other end is closed."""
    while True:
        try:
            do, *given = pipe.recv()
        except EOFError:
            return
        if do == "check":
            on, fields, seconds = given
            _limit(seconds)
            pipe.send_bytes(json.dumps(check(on, fields)).encode())
        else:
            _judge(pipe, marker, *given)
        _limit(0)


def main() -> None:
    """Limit this process, then serve."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # They go to a whole group of processes; this one ends with its pipe.
        signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    try:
        _serve(Connection(int(sys.argv[1])), int(sys.argv[2]))
    except MemoryError:
        os._exit(1)


if __name__ == "__main__":
    main()
