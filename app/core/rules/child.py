"""The process that compiles and evaluates tenants' rules: `python -m app.core.rules.child FD`.

It reads requests from its standard input and ends with it. The kernel ends it for a rule that takes
too much time; memory is limited too. A shared page says which rule it is at. It has no environment,
no connection and no key.
"""

import json
import mmap
import os
import resource
import signal
import sys
import time
from hashlib import sha256
from typing import Any, BinaryIO

from cel_expr_python import cel

from app.core.rules.compiling import cause, check, compiled, environment, text_of
from app.core.rules.language import (
    LENGTH,
    MARK,
    MOST_MATCHES,
    VARIABLES,
    Erred,
    Match,
    pieces,
)

MEMORY = 768 * 1024 * 1024
"""Bytes of address space: a record of 8 MiB takes 500 MB in the worst form."""

MOST_TEXT = 10_000


class Rule:
    """A rule, compiled."""

    def __init__(
        self, on: str, when: str, title: str, detail: str | None, dedupe: str | None
    ) -> None:
        self.on = on
        self.when = compiled(on, when)
        self._title = title
        self._detail = detail
        self._dedupe = None if dedupe is None else compiled(on, dedupe)

    def matches(self, seen: Any) -> bool:
        """Say whether the condition holds for an activation. Raises `Erred`."""
        value = _value(self.when, seen)
        if not isinstance(value, bool):
            raise Erred(f"`when` gives {text_of(value)[:100]}, neither true nor false.")
        return value

    def describe(self, seen: Any, step: int | None, what: dict[str, str]) -> tuple[Match, str]:
        """Return the match, and the error of a template: the finding comes all the same."""
        errors: list[str] = []

        def written(template: str) -> str:
            parts = list(pieces(template))
            return "".join(
                text if begins is None else text_of(_value(compiled(self.on, text), seen))
                for text, begins in parts
            )

        def tried(name: str, make: Any, instead: str | None) -> str | None:
            try:
                return str(make())
            except (Erred, RuntimeError) as error:
                errors.append(f"{name}: {cause(str(error))}")
                return instead

        title = tried("title", lambda: written(self._title), self._title)
        detail = self._detail
        if detail is not None:
            detail = tried("detail", lambda: written(self._detail or "")[:MOST_TEXT], detail)
        dedupe = None
        if self._dedupe is not None:
            dedupe = tried("dedupe", lambda: _hashed(text_of(_value(self._dedupe, seen))), None)
        one_line = " ".join((title or "").replace("\0", " ").split()) or "(an empty title)"
        match = Match(step, one_line[:500], detail and detail.replace("\0", " "), dedupe, what)
        return match, "; ".join(errors)


def _hashed(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _made(text: dict[str, Any]) -> Rule | str:
    """Return a rule, or why it does not compile any more: an older library took it."""
    try:
        return Rule(**text)
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

    def __init__(self, facts: dict[str, Any], bundle: bytes | None) -> None:
        """Take its JSON apart; `bundle` is None for a session, empty for a record that expired."""
        self.expired = bundle == b""
        self.steps: list[dict[str, Any]] = []
        self._facts = facts
        self._by_step: dict[int, Any] = {}
        seen: dict[str, Any]
        if bundle is None:
            self._environment = environment(VARIABLES["session"])
            seen = {"session": self._facts}
        else:
            read = json.loads(bundle) if bundle else {"content": None, "steps": []}
            self._environment = environment(VARIABLES["record"])
            self.steps = read["steps"]
            seen = {"record": self._facts, "content": read["content"], "steps": self.steps}
        self.whole = self._environment.Activation(seen)

    def step(self, number: int) -> Any:
        """Return the activation of one step."""
        if number not in self._by_step:
            seen = {"record": self._facts, "step": self.steps[number]}
            self._by_step[number] = environment(VARIABLES["step"]).Activation(seen)
        return self._by_step[number]

    def judge(self, rule: Rule | str) -> dict[str, Any] | None:
        """Return what came of a rule, or of one that does not compile; None for nothing."""
        failed = (
            rule
            if isinstance(rule, str)
            else "Its content has expired or cannot be read." * self.expired
        )
        if failed or isinstance(rule, str):
            return {"matched": 0, "matches": [], "errors": 1, "error": failed, "step": None}
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
        return {
            "matched": matched,
            "matches": matches,
            "errors": len(errors),
            "error": first,
            "step": where,
        }

    def _what(self, step: int | None) -> dict[str, str]:
        """Return what matched, in a few words."""
        if step is None:
            names, source = ("kind", "title", "outcome"), self._facts
        else:
            names, source = ("name", "kind", "status"), self.steps[step]
        return {name: str(source[name])[:500] for name in names if source.get(name) is not None}


class Child:
    """Answers requests one after the other, until its input ends."""

    def __init__(self, marker: int, source: BinaryIO, sink: BinaryIO) -> None:
        """`marker` is the file descriptor of the shared page."""
        self._page = mmap.mmap(marker, mmap.PAGESIZE)
        self._source = source
        self._sink = sink

    def run(self) -> None:
        """Answer until the input ends."""
        while (request := self._read()) is not None:
            asked = json.loads(request)
            if asked["do"] == "check":
                self._limit(asked["seconds"])
                refused = check(asked["on"], asked["fields"])
                self._limit(0)
                self._write({name: list(each) for name, each in refused.items()})
            else:
                self._judge(asked, [self._subject() for _ in range(asked["count"])])
            self._sink.flush()

    def _subject(self) -> tuple[bytes, bytes | None]:
        facts, bundle = self._read(), self._read()
        kind = facts[:1] if facts else b""
        return (facts or b"")[1:], bundle if kind == b"r" else None

    def _judge(self, asked: dict[str, Any], subjects: list[tuple[bytes, bytes | None]]) -> None:
        """Answer for one subject after the other; "slow" ends the batch, and so does its time."""
        rules = [_made(each) for each in asked["rules"]]
        skipped = {(first, second) for first, second in asked["skip"]}
        until = time.monotonic() + asked["seconds"]
        for place, (facts, bundle) in enumerate(subjects):
            if place and time.monotonic() > until:
                break
            number = asked["first"] + place
            limit = asked["cpu"] + asked["cpu_a_byte"] * len(bundle or b"")
            self._mark(number, -1)
            self._limit(limit)
            subject = Subject(json.loads(facts), bundle)
            found: dict[int, Any] = {}
            began, used = time.monotonic(), time.process_time()
            for at in asked["apply"][place]:
                if (number, at) not in skipped:
                    self._mark(number, at)
                    self._limit(limit)
                    came = subject.judge(rules[at])
                    if came is not None:
                        found[at] = came
                    if time.process_time() > used + asked["cpu_a_subject"]:
                        self._limit(0)
                        self._write("slow")
                        return
            self._limit(0)
            micros = int((time.monotonic() - began) * 1e6)
            self._write([len(subject.steps), micros, list(found.items())])
            if place % 16 == 15:
                self._sink.flush()
        self._write(None)

    def _mark(self, subject: int, rule: int) -> None:
        MARK.pack_into(self._page, 0, subject, rule)

    @staticmethod
    def _limit(seconds: float) -> None:
        """Have the kernel end this process after so many seconds of its time; 0: no limit."""
        signal.setitimer(signal.ITIMER_PROF, seconds)

    def _read(self) -> bytes | None:
        length = self._source.read(LENGTH.size)
        if len(length) < LENGTH.size:
            return None
        return self._source.read(LENGTH.unpack(length)[0])

    def _write(self, answer: object) -> None:
        data = json.dumps(answer).encode()
        self._sink.write(LENGTH.pack(len(data)) + data)


def main() -> None:
    """Limit this process, then serve."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # They go to a whole group of processes; this one ends with its input.
        signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    try:
        Child(int(sys.argv[1]), sys.stdin.buffer, sys.stdout.buffer).run()
    except MemoryError:
        os._exit(1)


if __name__ == "__main__":
    main()
