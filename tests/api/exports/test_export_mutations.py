"""Files of period exports, changed line by line: `verify.py` finds and names each change."""

import json
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from app.core.exports import building
from tests.support.callers.making import make_session
from tests.support.evidence.exporting import Exporter, joined, verified

Lines = list[bytes]


KINDS = {"whole": {"header", "record", "session", "leaf", "statement"}}
KINDS["folded"] = KINDS["whole"] - {"leaf"} | {"fold"}


@pytest.fixture
def file(exporter: Exporter) -> Lines:
    """Return the lines of an export that has other leaves in full."""
    return made_file(exporter)


def made_file(exporter: Exporter) -> Lines:
    exporter.records(1)
    since = exporter.now()
    session = make_session(exporter.api())["id"]
    exporter.records(3, session)
    exporter.seal(session)
    until = exporter.now()
    exporter.records(1)
    return exporter.file(exporter.made(since, until)).splitlines()


def chained(lines: Lines) -> Lines:
    """Return the lines as a forger would: each follows from the one before again."""
    chain, made = b"", []
    for number, line in enumerate(lines):
        value = json.loads(line)
        if number:
            value["after"] = chain.hex()[:16]
        raw = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()
        chain = sha256(chain + raw).digest()
        made.append(raw)
    return made


def values_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every single value in JSON."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from values_in(each, (*path, name))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from values_in(each, (*path, number))
    else:
        yield path


def other(value: Any) -> Any:
    """Return another value of the same kind."""
    if value is None:
        return "x"
    if isinstance(value, int):
        return value + 1
    return ("1" if value[:1] == "0" else "0") + value[1:]


def changed(line: bytes, path: tuple[Any, ...], *to: Any) -> bytes:
    """Return a line with another value at a path: of the same kind, or `to`."""
    value = json.loads(line)
    inner = value
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = to[0] if to else other(inner[path[-1]])
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


@pytest.mark.parametrize("kind", KINDS)
def test_every_value_of_every_line_is_held_to_something(
    exporter: Exporter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    if kind == "folded":
        monkeypatch.setattr(building, "MOST_OTHERS", -1)
        monkeypatch.setattr(building, "WHOLE_BY", 0)
    file = made_file(exporter)
    assert {json.loads(line)["type"] for line in file} == KINDS[kind]
    assert verified(tmp_path, joined(file)).code == 0
    tried = 0
    for number, line in enumerate(file):
        for path in values_in(json.loads(line)):
            forged = [*file[:number], changed(line, path), *file[number + 1 :]]
            for each in [forged, *([chained(forged)] if path != ("after",) else [])]:
                found = verified(tmp_path, joined(each))
                assert found.code in (1, 2), (number + 1, path, found.text)
                assert "INVALID" in found.text or "INCOMPLETE" in found.text, (path, found.text)
                tried += 1
    assert tried > 150


def test_no_value_of_another_type_confuses_the_verifier(file: Lines, tmp_path: Path) -> None:
    for number, line in enumerate(file):
        for path in values_in(json.loads(line)):
            wrong: tuple[Any, ...] = (-1, None, [], {}, "", "2026-13-01T00:00:00.000000Z", True)
            for value in wrong:
                forged = changed(line, path, value)
                found = verified(tmp_path, joined([*file[:number], forged, *file[number + 1 :]]))
                assert found.code == 1 or forged == line, (number + 1, path, value, found.text)


@pytest.mark.parametrize(
    ("forge", "said"),
    [
        (lambda lines: [*lines[:2], *lines[3:]], "leaf {2} is missing: a line before"),
        (lambda lines: [*lines[:4], lines[3], *lines[4:]], "stands here twice: a line was added"),
        (lambda lines: [*lines[:3], lines[4], lines[3], *lines[5:]], "is missing"),
        (lambda lines: lines[:-1], "there is no last line"),
        (lambda lines: [*lines, lines[-1]], "follows the last one"),
        (lambda lines: lines[1:], "no such line belongs here"),
        (lambda lines: [lines[0], *lines], "no such line belongs here"),
        (lambda lines: [], "there is no last line"),
        (lambda lines: [b" " + lines[0], *lines[1:]], "this is not canonical JSON"),
        (lambda lines: [b"\xff", *lines[1:]], "this is not JSON"),
        (lambda lines: [b"[" * 9999, *lines[1:]], "nested too deep"),
    ],
)
def test_a_line_left_out_added_or_moved_is_named(
    file: Lines, tmp_path: Path, forge: Callable[[Lines], Lines], said: str
) -> None:
    index = json.loads(file[2])["index"]

    found = verified(tmp_path, joined(forge(file)))

    assert said.replace("{2}", str(index)) in found.text, found.text
    assert found.code == 1


def test_a_changed_line_is_named_by_its_number(file: Lines, tmp_path: Path) -> None:
    place = next(n for n, line in enumerate(file) if json.loads(line)["type"] == "record")
    forged = [*file[:place], file[place].replace(b"tool.call", b"tool.cull"), *file[place + 1 :]]

    found = verified(tmp_path, joined(forged))

    assert f"line {place + 2}: the line before was changed" in found.text


def test_a_file_that_is_cut_within_a_line_is_incomplete(file: Lines, tmp_path: Path) -> None:
    whole = joined(file)

    found = verified(tmp_path, whole[: len(whole) // 2])

    assert found.verdicts["lines"] == "INCOMPLETE"
    assert found.code == 1


def test_a_record_left_out_and_signed_anew_by_its_owner_leaves_its_leaf(
    exporter: Exporter, file: Lines, tmp_path: Path
) -> None:
    """The owner has every key: what stands against them is the log, whose root is known."""
    place = next(n for n, line in enumerate(file) if json.loads(line)["type"] == "record")
    record = json.loads(file[place])
    leaf = {"bundle_sha256": record["bundle_sha256"], "type": "record"}
    hidden = {"index": record["index"], "leaf": leaf, "type": "leaf"}
    forged = [*file[:place], json.dumps(hidden).encode(), *file[place + 1 :]]

    found = verified(tmp_path, joined(chained(forged)))

    assert "1 are records that are not listed" in found.text or found.code == 1
    gone = [*file[:place], *file[place + 1 :]]
    assert verified(tmp_path, joined(chained(gone))).code == 1
