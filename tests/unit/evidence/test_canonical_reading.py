"""Strict reading of JSON: I-JSON (RFC 7493), refusals with a pointer, bounded cost."""

import json
import sys
import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.lib.canonical_json import MAX_DEPTH, MAX_INTEGER, NotIJSON, NotJSON, parse
from tests.support.callers.refusals import REFUSED

MEBIBYTE = 1 << 20
FRAGMENTS = [*'[]{}:,"01- \n\\é\x00', '"a"', '"b"', '"a":', ".5", "e9", "e999", "9" * 16]
FRAGMENTS += ["\\u", "\\ud800", "\\udc00", "null", "true", "NaN"]


def refusal_of(raw: bytes) -> NotJSON | NotIJSON | None:
    try:
        parse(raw)
    except (NotJSON, NotIJSON) as refusal:
        return refusal
    return None


@pytest.mark.parametrize(
    ("raw", "status", "pointer"),
    [pytest.param(*rest, id=name) for name, *rest in REFUSED],
)
def test_what_cannot_be_signed_is_refused_with_its_place(
    raw: bytes, status: int, pointer: str | None
) -> None:
    refusal = refusal_of(raw)
    assert refusal is not None
    found = (422, refusal.pointer) if isinstance(refusal, NotIJSON) else (400, None)
    assert found == (status, pointer)
    # What it says can stand in an answer: it is valid text, and short however long the body is.
    assert 0 < len(refusal.detail.encode("utf-8")) < 200


def test_a_refusal_says_what_to_change() -> None:
    says = {
        b"\xef\xbb\xbf{}": "byte-order mark: send it without",
        b'{"a":"\xff"}': "byte 7 cannot be decoded",
        b"[1,\n 2 3]": "line 2, column 4",
        b"[NaN]": "NaN is not a JSON number",
        b"9007199254740993": "send it as a string",
        b"0.123456789012345678": "17 significant digits, and a double rounds it: send it as a str",
        b"-1e-400": "a double of it is 0: send it as a string",
    }
    for raw, advice in says.items():
        refusal = refusal_of(raw)
        assert refusal is not None
        assert advice in refusal.detail


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b" \n[ ] \t\r", []),
        (b"null", None),
        (b'""', ""),
        (b"-0", 0),
        (b"-0.0", 0),
        (b"1E5", 100000),
        (b"1e+05", 100000),
        (b"9007199254740991", MAX_INTEGER),
        (b"-9007199254740991", -MAX_INTEGER),
        (b"9007199254740991.0", MAX_INTEGER),
        (b"1e21", 1e21),
        (b"1e300", 1e300),
        (b"0e-400", 0),
        (b"5e-324", 5e-324),
        (b"0.12345678901234567", 0.12345678901234567),
        (b"-1.2345678901234567E-300", -1.2345678901234567e-300),
        (b"0.5" + b"0" * 100_000, 0.5),
        (b"0" + b"." + b"0" * 300 + b"12345678901234567", 1.2345678901234567e-301),
        (b'"\\ud83d\\ude00"', "😀"),
        (b'"\\\\ud83d"', "\\ud83d"),
        (b'"\\u0000\x7f"', "\x00\x7f"),
        ('"\\uFFFF\uffff\u2028\ufeff"'.encode(), "\uffff\uffff\u2028\ufeff"),
        (b'"' + b"[" * 1000 + b'"', "[" * 1000),
        (b'{"":{"a":1},"a":{"a":2}}', {"": {"a": 1}, "a": {"a": 2}}),
        (b"[" + b"[]," * 200 + b"{}]", [[]] * 200 + [{}]),
    ],
)
def test_what_every_parser_reads_alike_is_accepted(raw: bytes, value: Any) -> None:
    assert parse(raw) == value


def test_names_keep_the_order_in_which_they_were_written() -> None:
    assert list(parse(b'{"b":1,"a":2}')) == ["b", "a"]  # type: ignore[arg-type]


def test_128_levels_are_not_too_deep_however_many_there_are() -> None:
    tower = b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1)
    assert parse(b"[" + tower + b"," + tower + b"]") == json.loads(f"[{tower.decode()}]") * 2


def test_to_refuse_what_is_too_deep_takes_little_memory() -> None:
    hostile = b"[" * 1_000_000
    tracemalloc.start()
    try:
        assert isinstance(refusal_of(hostile), NotIJSON)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10 * len(hostile)


@settings(max_examples=300)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join))
def test_only_json_is_accepted_and_nothing_else_is_called_not_json(text: str) -> None:
    def no_constant(name: str) -> None:
        raise ValueError(name)

    try:
        json.loads(text, parse_constant=no_constant)
    except ValueError:
        assert isinstance(refusal_of(text.encode()), NotJSON)
    else:
        assert not isinstance(refusal_of(text.encode()), NotJSON)


@settings(max_examples=300)
@given(st.binary(max_size=40))
def test_arbitrary_bytes_are_read_or_refused_and_nothing_else(raw: bytes) -> None:
    if refusal_of(raw) is None:
        json.loads(raw)


@settings(max_examples=300)
@given(
    st.lists(st.one_of(st.text(max_size=3), st.integers(0, 3)), max_size=12),
    st.sampled_from(['"\\ud800"', "1e999", "-9007199254740992", '{"\\udc00":1}']),
)
def test_the_pointer_leads_to_a_planted_fault(path: list[str | int], fault: str) -> None:
    text = fault
    for step in reversed(path):
        if isinstance(step, int):
            text = "[" + '{"a":"[{"},' * step + text + "]"
        else:
            text = f'{{"before it":[1,[2]],{json.dumps(step)}:{text}}}'
    refusal = refusal_of(text.encode())
    assert isinstance(refusal, NotIJSON)
    escaped = [str(step).replace("~", "~0").replace("/", "~1") for step in path]
    assert refusal.pointer == "".join(f"/{step}" for step in escaped)


COSTLY = {
    "open brackets": b"[" * MEBIBYTE,
    "open objects": b'{"a":' * (MEBIBYTE // 5),
    "open strings": b'"' + b'\\"' * (MEBIBYTE // 2),
    "open strings and a backslash": b'"' + b'\\"' * (MEBIBYTE // 2) + b"\\",
    "quotes": b'"' * MEBIBYTE,
    "backslashes": b'"' + b"\\" * MEBIBYTE,
    "digits": b"1" * MEBIBYTE,
    "digits and a fraction": b"1" * MEBIBYTE + b".5",
    "a fraction": b"0." + b"1" * MEBIBYTE,
    "a fraction of zeros": b"0." + b"0" * MEBIBYTE + b"1",
    "many fractions": b"[" + b"0.1111111111111111111,0," * (MEBIBYTE // 23) + b"0]",
    "an exponent": b"1e" + b"9" * MEBIBYTE,
    "a string of brackets": b'["' + b"[" * MEBIBYTE + b'",1e999]',
    "pairs of surrogates": b'"' + b"\\ud83d\\ude00" * (MEBIBYTE // 12) + b'\\ud800"',
    "a fault behind many items": b"[" + b"1," * (MEBIBYTE // 2) + b"1e999]",
    "a fault far down": b"[" * 127 + b"[" + b"1," * (MEBIBYTE // 2) + b"1e999" + b"]" * 128,
    "many objects": b"[" + b"{}," * (MEBIBYTE // 3) + b'{"a":1,"a":1}]',
    "many names": b"{" + b'"%d":1,' * 100_000 % (*range(100_000),) + b'"1":1}',
    "white space": b" " * MEBIBYTE,
}


@pytest.mark.parametrize("raw", COSTLY.values(), ids=COSTLY.keys())
def test_a_mebibyte_costs_no_more_than_its_length(raw: bytes) -> None:
    started = time.process_time()
    refusal_of(raw)
    # Quadratic work on a mebibyte takes minutes; in proportion it takes half a second at most, and
    # on a slow machine that does much else some.
    assert time.process_time() - started < 30


def test_a_caller_without_stack_is_not_blamed_on_the_document() -> None:
    tower = b"[" * 120 + b"]" * 120

    def at_the_bottom_of(calls: int) -> Any:
        return parse(tower) if calls == 0 else at_the_bottom_of(calls - 1)

    calls = sys.getrecursionlimit()
    while True:
        try:
            # Neither NotJSON nor NotIJSON, at any depth of the stack.
            assert at_the_bottom_of(calls) == json.loads(tower)
        except RecursionError:
            calls -= 1
        else:
            break
    assert calls > 0
