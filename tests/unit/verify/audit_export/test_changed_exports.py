"""A changed, cut or foreign export is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.verify.audit_export.exports import MADE, anchor, checked, entries, hashed, lines


def rewritten(change: Callable[[list[dict[str, Any]]], object]) -> bytes:
    made = [dict(each) for each in MADE]
    change(made)
    return lines(made)


GOOD = lines(MADE)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", "INCOMPLETE"),
        (GOOD[:-1], "INCOMPLETE"),
        (GOOD[: GOOD.rindex(b"\n", 0, -1) + 1], "INCOMPLETE"),
        (GOOD[: len(GOOD) // 2], "INCOMPLETE"),
        (GOOD + GOOD, "INVALID"),
        (GOOD + b"\n", "INVALID"),
        (b"\n" + GOOD, "INVALID"),
        (GOOD.replace(b"\n", b"\r\n"), "INVALID"),
        (GOOD.replace(b'{"action"', b'{ "action"', 1), "INVALID"),
        (GOOD.replace(b'"action":"key.mint"', b'"action":"key.lost"', 1), "INVALID"),
        (GOOD.replace(b'"type":"trailer"', b'"type":"Trailer"', 1), "INVALID"),
        (lines([]), "INVALID"),
        (lines(MADE[1:]), "INVALID"),
        (lines(MADE[:3] + MADE[4:]), "INVALID"),
        (lines([*MADE[:3], MADE[2], *MADE[3:]]), "INVALID"),
        (lines([*MADE[:2], MADE[3], MADE[2], *MADE[4:]]), "INVALID"),
        (rewritten(lambda made: made[3].update(details={"x": 1})), "INVALID"),
        (rewritten(lambda made: made[3].update(hash="00" * 32)), "INVALID"),
        (rewritten(lambda made: made[3].update(hash=made[3]["hash"].upper())), "INVALID"),
        (rewritten(lambda made: made[3].update(more=1)), "INVALID"),
        (rewritten(lambda made: made[3].update(seq=True)), "INVALID"),
        (rewritten(lambda made: made[3].pop("details")), "INVALID"),
        (lines(entries(3)[:2] + entries(3, "ten_other")[2:]), "INVALID"),
        (lines(MADE, entries=6), "INVALID"),
        (lines(MADE, head={"seq": 6, "hash": MADE[5]["hash"]}), "INVALID"),
        (lines(MADE, head={"seq": 7, "hash": MADE[5]["hash"]}), "INVALID"),
        (lines(MADE, head={"seq": 7}), "INVALID"),
        (lines(MADE, more=1), "INVALID"),
        (lines(MADE, anchors_total="0"), "INVALID"),
        (lines(MADE, anchors_total=-1), "INVALID"),
        (lines(MADE, anchors_total=1), "INCOMPLETE"),
        (lines(MADE, [anchor(MADE[1]), anchor(MADE[2])], anchors_total=1), "INVALID"),
        (GOOD.replace(b',"anchors_total":0', b"", 1), "INVALID"),
        (b"null\n", "INVALID"),
        (b"[" * 100_000 + b"\n", "INVALID"),
        (b"\xff\n", "INVALID"),
    ],
)
def test_a_chain_that_is_not_whole_is_refused(tmp_path: Path, data: bytes, status: str) -> None:
    found = checked(tmp_path, data)
    assert found.code == 1, found.text
    assert status in found.verdicts.values(), found.text


def test_an_entry_of_another_tenant_with_right_hashes_is_refused(tmp_path: Path) -> None:
    strange = hashed(MADE[2] | {"tenant_id": "ten_other"})
    assert checked(tmp_path, lines([*MADE[:2], strange])).of("INVALID") == ["entries"]
    first = hashed(MADE[0] | {"action": "key.mint"})
    assert checked(tmp_path, lines([first])).of("INVALID") == ["entries"]


def test_one_flipped_bit_anywhere_in_an_export_is_refused(
    tmp_path: Path, policy: list[object]
) -> None:
    data = lines(MADE[:3], [anchor(MADE[1], witnesses=[9])])
    assert checked(tmp_path, data, *policy).code == 0
    for at in range(0, len(data), 17):
        spoiled = bytearray(data)
        spoiled[at] ^= 1 << at % 8
        found = checked(tmp_path, bytes(spoiled), *policy)
        assert found.code == 1, (at, found.text)
