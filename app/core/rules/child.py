"""The process that compiles and evaluates tenants' rules: `python -m app.core.rules.child FD`.

It reads requests from its standard input and ends with it. The kernel ends it for a rule that takes
too much time; memory is limited too. A shared page says which rule it is at. It has no environment,
no connection and no key.
"""

import json
import mmap
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, BinaryIO, NamedTuple

from cel_expr_python import cel
from cel_expr_python.ext import ext_strings

from app.core.rules.language import (
    FIELDS,
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
_OBJECT = cel.Type.Map(cel.Type.STRING, cel.Type.DYN)
_TYPES = {
    "record": _OBJECT,
    "content": cel.Type.DYN,
    "steps": cel.Type.List(_OBJECT),
    "step": _OBJECT,
    "session": _OBJECT,
}
_TEXT_OF = {
    "string": cel.Type.STRING,
    "int": cel.Type.INT,
    "double": cel.Type.DOUBLE,
    "bool": cel.Type.BOOL,
    "map": cel.Type.Map(cel.Type.DYN, cel.Type.DYN),
    "list": cel.Type.List(cel.Type.DYN),
    "null": cel.Type.NULL,
}
_CARD = re.compile(r"(?<![0-9])[0-9](?:[ -]?[0-9]){12,18}(?![0-9])")
_ERROR = re.compile(r"ERROR: <input>:(-?\d+):(-?\d+): (.*)")
_UNDECLARED = re.compile(r"undeclared reference to '([^']*)' \(in container ''\)")
_STATUS = re.compile(r"^[A-Z_]+: | \[[A-Z_]+\]$")


class Refused(NamedTuple):
    """Why an expression does not compile: a place in it, both from 1, and a sentence."""

    line: int
    column: int
    detail: str


def text_of(value: object) -> str:
    """Return a value as text: strings as they are, all else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g}s"
    if isinstance(value, bytes | bytearray):
        return value.hex()
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=text_of)


def has_card_number(text: str) -> bool:
    """Say whether a text has 13 to 19 digits that pass Luhn's check (ISO/IEC 7812-1, annex B)."""
    for found in _CARD.finditer(text):
        digits = [int(each) for each in found[0] if each.isdigit()]
        doubled = (sum(divmod(2 * each, 10)) for each in digits[-2::-2])
        if len(set(digits)) > 1 and (sum(digits[::-2]) + sum(doubled)) % 10 == 0:
            return True
    return False


@lru_cache(maxsize=16)
def _environment(names: tuple[str, ...]) -> Any:
    functions = [
        cel.FunctionDecl(
            "text",
            [
                cel.Overload(
                    f"text_{name}", return_type=cel.Type.STRING, parameters=[kind], impl=text_of
                )
                for name, kind in _TEXT_OF.items()
            ],
        ),
        cel.FunctionDecl(
            "hasCardNumber",
            [
                cel.Overload(
                    "has_card_number",
                    return_type=cel.Type.BOOL,
                    parameters=[cel.Type.STRING],
                    impl=has_card_number,
                )
            ],
        ),
    ]
    types = {name: _TYPES.get(name, cel.Type.DYN) for name in names}
    return cel.NewEnv(variables=types, extensions=[ext_strings.ExtStrings()], functions=functions)


@lru_cache(maxsize=2000)
def _compiled(on: str, text: str) -> Any:
    return _environment(tuple(VARIABLES[on])).compile(text)


def check(on: str, fields: Mapping[str, str | None]) -> dict[str, Refused]:
    """Return why fields of a rule do not compile; `title` and `detail` are templates."""
    wanted = {"when": ("BOOL",), "dedupe": ("STRING",)}
    found: dict[str, Refused] = {}
    for name, text in fields.items():
        if text is None:
            continue
        refused = (
            _refusal(on, text, wanted[name]) if name in wanted else _template_refusal(on, text)
        )
        if refused is not None:
            found[name] = refused
    return found


def _template_refusal(on: str, template: str) -> Refused | None:
    try:
        for text, begins in list(pieces(template)):
            refused = None if begins is None else _refusal(on, text, ())
            if begins is not None and refused is not None:
                return _placed(template, begins + _offset(text, refused), refused.detail)
    except Erred as unclosed:
        return _placed(template, int(str(unclosed)), "Close this expression with }}.")
    return None


def _refusal(on: str, text: str, types: Sequence[str]) -> Refused | None:
    """Return why an expression does not compile, or is of none of these types."""
    try:
        given = _compiled(on, text).return_type().name()
    except RuntimeError as error:
        return _explained(on, text, str(error))
    if types and given not in (*types, "DYN"):
        return Refused(1, 1, f"This gives {given.lower()}; send one that gives {types[0].lower()}.")
    return _unknown_field(on, text)


def _explained(on: str, text: str, error: str) -> Refused:
    found = _ERROR.search(error)
    if found is None or int(found[1]) < 1:
        return Refused(1, 1, (found[3] if found else _cause(error)).strip())
    place = Refused(int(found[1]), int(found[2]), found[3].strip())
    undeclared = _UNDECLARED.search(place.detail)
    if undeclared is None:
        return place
    name = undeclared[1].split(".")[0]
    declared = ", ".join(f"`{each}`" for each in VARIABLES[on])
    near = get_close_matches(name, (*VARIABLES[on], "text", "hasCardNumber"), 1)
    advice = f"`{near[0]}` is" if near else f"there are {declared}"
    return _placed(text, _begin_of(text, place, name), f"`{name}` is not declared; {advice}.")


def _unknown_field(on: str, text: str) -> Refused | None:
    """Return the refusal of a name that no field of a record, step or session has.

    Maps have no declared fields. So each field is declared as a variable of its qualified name,
    which CEL resolves first.
    """
    known = {
        f"{owner}.{name}": owner
        for owner, names in FIELDS.items()
        for name in names
        if owner.split(".")[0] in VARIABLES[on]
    }
    plain = {name for name in VARIABLES[on] if name not in FIELDS}
    try:
        _environment((*sorted(plain), *sorted(known))).compile(text)
    except RuntimeError as error:
        for found in _ERROR.finditer(str(error)):
            undeclared = _UNDECLARED.search(found[3])
            name = undeclared[1] if undeclared else ""
            owner = next((each for each in sorted(FIELDS, reverse=True) if name == each), "")
            parent, _, field = name.rpartition(".")
            if not owner and parent in FIELDS and name not in known:
                place = Refused(int(found[1]), int(found[2]), "")
                near = get_close_matches(field, FIELDS[parent], 1)
                advice = f"`{near[0]}` is" if near else "it has " + ", ".join(FIELDS[parent])
                detail = f"`{field}` is no field of {parent}; {advice}."
                return _placed(text, _begin_of(text, place, field), detail)
    return None


def _offset(text: str, place: Refused) -> int:
    lines = text.split("\n")
    return sum(len(each) + 1 for each in lines[: place.line - 1]) + place.column - 1


def _begin_of(text: str, place: Refused, name: str) -> int:
    """Return where a name begins: CEL names the dot behind it, or the parenthesis."""
    at = _offset(text, place)
    before, behind = text.rfind(name, 0, at + len(name)), text.find(name, at)
    return before if before >= 0 else max(behind, 0)


def _placed(text: str, offset: int, detail: str) -> Refused:
    before = text[:offset].split("\n")
    return Refused(len(before), len(before[-1]) + 1, detail)


class Rule:
    """A rule, compiled."""

    def __init__(
        self, on: str, when: str, title: str, detail: str | None, dedupe: str | None
    ) -> None:
        self.on = on
        self.when = _compiled(on, when)
        self._title = title
        self._detail = detail
        self._dedupe = None if dedupe is None else _compiled(on, dedupe)

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
                text if begins is None else text_of(_value(_compiled(self.on, text), seen))
                for text, begins in parts
            )

        def tried(name: str, make: Any, instead: str | None) -> str | None:
            try:
                return str(make())
            except (Erred, RuntimeError) as error:
                errors.append(f"{name}: {_cause(str(error))}")
                return instead

        title = tried("title", lambda: written(self._title), self._title)
        detail = self._detail
        if detail is not None:
            detail = tried("detail", lambda: written(self._detail or "")[:MOST_TEXT], detail)
        dedupe = None
        if self._dedupe is not None:
            dedupe = tried("dedupe", lambda: text_of(_value(self._dedupe, seen)), None)
        one_line = " ".join((title or "").replace("\0", " ").split()) or "(an empty title)"
        match = Match(step, one_line[:500], detail and detail.replace("\0", " "), dedupe, what)
        return match, "; ".join(errors)


def _made(text: dict[str, Any]) -> Rule | str:
    """Return a rule, or why it does not compile any more: an older library took it."""
    try:
        return Rule(**text)
    except RuntimeError as error:
        return _cause(str(error))


def _value(expression: Any, seen: Any) -> Any:
    found = expression.eval(seen)
    value = found.value()
    if value is True or value is False:
        return value
    if found.type() == cel.Type.ERROR:
        raise Erred(str(value))
    return found.plain_value()


def _cause(error: str) -> str:
    """Return an error of CEL without its status codes."""
    return _STATUS.sub("", _STATUS.sub("", error)).replace("\0", " ")[:500] or "It failed."


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
            self._environment = _environment(tuple(VARIABLES["session"]))
            seen = {"session": self._facts}
        else:
            read = json.loads(bundle) if bundle else {"content": None, "steps": []}
            self._environment = _environment(tuple(VARIABLES["record"]))
            self.steps = read["steps"]
            seen = {"record": self._facts, "content": read["content"], "steps": self.steps}
        self.whole = self._environment.Activation(seen)

    def step(self, number: int) -> Any:
        """Return the activation of one step."""
        if number not in self._by_step:
            environment = _environment(tuple(VARIABLES["step"]))
            seen = {"record": self._facts, "step": self.steps[number]}
            self._by_step[number] = environment.Activation(seen)
        return self._by_step[number]

    def judge(self, rule: Rule | str) -> dict[str, Any] | None:
        """Return what came of a rule, or of one that does not compile; None for nothing."""
        failed = rule if isinstance(rule, str) else "Its content has expired." * self.expired
        if failed or isinstance(rule, str):
            return {"matched": 0, "matches": [], "errors": 1, "error": failed, "step": None}
        matched, errors = 0, 0
        matches: list[Match] = []
        first = where = None
        on_steps = rule.on == "step"
        for number in range(len(self.steps)) if on_steps else (None,):
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
                error = _cause(str(caught))
            if error:
                errors += 1
                first, where = first or error, number if first is None else where
        if not matched and not errors:
            return None
        return {
            "matched": matched,
            "matches": matches,
            "errors": errors,
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
            began = time.monotonic()
            for at in asked["apply"][place]:
                if (number, at) not in skipped:
                    self._mark(number, at)
                    self._limit(limit)
                    came = subject.judge(rules[at])
                    if came is not None:
                        found[at] = came
                    if time.monotonic() > began + asked["seconds_a_subject"]:
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
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    os.nice(5)
    try:
        Child(int(sys.argv[1]), sys.stdin.buffer, sys.stdout.buffer).run()
    except MemoryError:
        os._exit(1)


if __name__ == "__main__":
    main()
