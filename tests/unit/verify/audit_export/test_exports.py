"""An exported chain: anchors, changes, and how it is read."""

import json
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.evidence import verify
from app.ledger import leaves
from app.ledger.notes import Note
from tests.unit.verify import packs
from tests.unit.verify.audit_export.exports import (
    HEAD,
    MADE,
    NAMED,
    NOBODYS,
    WAITS,
    anchor,
    checked,
    entries,
    hashed,
    lines,
    part_of,
)


def test_of_many_anchors_only_the_newest_need_be_listed(tmp_path: Path) -> None:
    found = checked(tmp_path, lines(MADE, [anchor(MADE[1])], anchors_total=700))
    assert (found.code, found.verdicts["anchor 1"]) == (0, "VALID"), found.text


def test_an_anchor_that_waits_for_its_place_in_the_log_proves_nothing_yet(
    tmp_path: Path, policy: list[object]
) -> None:
    waiting, proven = anchor(MADE[6]) | WAITS, anchor(MADE[3], witnesses=[9])
    found = checked(tmp_path, lines(MADE, [waiting, proven]), *policy, *NAMED)
    assert (found.code, found.last) == (0, "VALID, WITH 2 NOT CHECKED")
    assert found.of("NOT CHECKED") == ["anchor 1", "entries 5 to 7"]
    found = checked(tmp_path, lines(MADE, [waiting]), *policy, *NAMED)
    assert (found.code, found.last) == (0, f"VALID AGAINST THE EXPORT'S OWN KEYS; {NOBODYS}")
    strange = anchor(entries(7, "ten_other")[3]) | WAITS
    assert checked(tmp_path, lines(MADE, [strange])).of("INVALID") == ["anchor 1"]


def test_an_anchor_whose_cosignatures_are_awaited_covers_nothing_yet(
    tmp_path: Path, policy: list[object]
) -> None:
    """Witnesses cosign a moment after the log has a head; an export may come in between."""
    cosigned, bare = anchor(MADE[3], witnesses=[9]), anchor(MADE[6], witnesses=[77])
    for listed, name in (([bare, cosigned], "anchor 1"), ([cosigned, bare], "anchor 2")):
        found = checked(tmp_path, lines(MADE, listed), *policy, *NAMED)
        assert (found.code, found.last) == (0, "VALID, WITH 2 NOT CHECKED"), found.text
        assert found.of("NOT CHECKED") == [f"{name} cosignatures", "entries 5 to 7"]
        assert "quorum w is awaited, not met yet" in found.text
        assert checked(tmp_path, lines(MADE, listed), *policy, *NAMED, "--strict").code == 2
    # The log alone signed what is newer: it says neither whose chain that is, nor that it holds.
    head = ["--head", f"4:{MADE[3]['hash']}", "--strict"]
    assert checked(tmp_path, lines(MADE, [bare, cosigned]), *policy, *head).code == 2


def test_an_older_anchor_without_a_quorum_is_incomplete(
    tmp_path: Path, policy: list[object]
) -> None:
    """A checkpoint that is cosigned holds all leaves before it, so these wait for nothing."""
    older, newer = anchor(MADE[3]), anchor(MADE[6], witnesses=[9])
    found = checked(tmp_path, lines(MADE, [newer, older]), *policy, *NAMED)
    assert (found.code, found.of("INCOMPLETE")) == (1, ["anchor 2 cosignatures"])


def test_it_tells_of_when_the_newest_anchor_is(tmp_path: Path, policy: list[object]) -> None:
    """A chain that was cut behind an older anchor is VALID: only its age can tell."""
    data = lines(MADE[:4], [anchor(MADE[3], witnesses=[9])])
    found = checked(tmp_path, data, *policy, *NAMED, "--strict")
    assert (found.code, found.last) == (0, "VALID"), found.text
    assert "anchor 1: entry 4, anchored at 2026-01-31T13:00:00.000000Z: it is leaf" in found.text
    assert checked(tmp_path, data, *policy, "--head", HEAD).of("INCOMPLETE") == ["head 7"]


OTHERS = entries(7, "ten_other")


@pytest.mark.parametrize(
    "wrong",
    [
        anchor(OTHERS[3]),
        anchor(MADE[3]) | {"seq": 5, "hash": MADE[4]["hash"]},
        anchor(MADE[3]) | {"seq": 8},
        anchor(MADE[3]) | {"seq": 0, "hash": "00" * 32},
        anchor(MADE[3]) | {"seq": "4"},
        anchor(MADE[3]) | {"at": "2026-01-31T13:00:00.000001Z"},
        anchor(MADE[3]) | {"chain": "00" * 32},
        anchor(MADE[3]) | {"chain": "AA"},
        anchor(MADE[3]) | {"vkey": str(packs.witness_key(9))},
        anchor(MADE[3]) | {"log_proof": anchor(MADE[4])["log_proof"]},
        anchor(MADE[3]) | {"log_proof": None},
        anchor(MADE[3]) | {"cosignatures": None},
        anchor(MADE[3]) | {"timestamp": "AAAA", "tsa_chain": "x"},
        anchor(MADE[3]) | {"timestamp": "?", "tsa_chain": None},
        anchor(MADE[3]) | {"timestamp": 1},
        anchor(MADE[3]) | {"tsa_chain": "x"},
        anchor(MADE[3]) | {"more": 1},
        {},
        None,
    ],
)
def test_an_anchor_of_something_else_is_refused(tmp_path: Path, wrong: Any) -> None:
    found = checked(tmp_path, lines(MADE, [anchor(MADE[1]), wrong]))
    assert found.code == 1, found.text
    assert found.of("INVALID")[0] in ("anchor 2", "anchor 2 timestamp")


def test_anchors_of_two_chains_are_refused(tmp_path: Path) -> None:
    other = anchor(MADE[3], chain=leaves.chain_name(b"\1" * 32))
    found = checked(tmp_path, lines(MADE, [anchor(MADE[1]), other]))
    assert found.of("INVALID") == ["chain"]


def test_the_policy_decides_on_logs_and_witnesses(tmp_path: Path, policy: list[object]) -> None:
    found = checked(tmp_path, lines(MADE, [anchor(MADE[1])]), *policy)
    assert found.of("INCOMPLETE") == ["anchor 1 cosignatures"]
    (tmp_path / "policy").write_text(
        f"log {packs.LOG.verifier_key.ed25519('other', bytes(32))}\nquorum none\n"
    )
    found = checked(tmp_path, lines(MADE, [anchor(MADE[1])]), *policy)
    assert found.of("INVALID") == ["the log's key"]


def test_a_cosigned_note_in_place_of_the_published_one_is_refused(tmp_path: Path) -> None:
    wrong = anchor(MADE[1])
    note = Note.parse(wrong["log_proof"]["checkpoint"].encode())
    wrong["log_proof"]["checkpoint"] = str(note.with_signatures([packs.cosign(9, note.text)]))
    assert checked(tmp_path, lines(MADE, [wrong])).of("INVALID") == ["anchor 1"]


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


@pytest.mark.parametrize("first", [1, 2, 5])
def test_a_range_of_a_chain_is_checked_from_what_its_first_entry_follows(
    tmp_path: Path, policy: list[object], first: int
) -> None:
    part = MADE[first - 1 :]
    found = checked(tmp_path, part_of(part, [anchor(MADE[6], witnesses=[9])]), *policy, *NAMED)
    behind = f"; A PART OF THE CHAIN, BEHIND ENTRY {first - 1}" if first > 1 else ""
    assert (found.code, found.last) == (0, f"VALID{behind}"), found.text
    kept = ["--head", f"{first - 1}:{part[0]['prev_hash']}"]
    assert checked(tmp_path, part_of(part), *kept * (first > 1)).code == 0
    early = ["--head", f"1:{MADE[0]['hash']}"]
    missing = checked(tmp_path, part_of(MADE[4:]), *early)
    assert missing.of("INCOMPLETE") == ["head 1"], missing.text


@pytest.mark.parametrize(
    "data",
    [
        part_of(MADE[3:], after={"seq": 3, "hash": MADE[1]["hash"]}),
        part_of(MADE[3:], after={"seq": 2, "hash": MADE[1]["hash"]}),
        part_of(MADE[3:], after={"seq": 0, "hash": "0" * 64}),
        part_of(MADE[3:], after={"seq": 3}),
        part_of(MADE[3:], after=None),
        part_of(MADE[3:], entries=7),
        part_of(MADE[3:5] + MADE[6:]),
        lines(MADE[3:]),
        lines(MADE, after={"seq": 1, "hash": MADE[0]["hash"]}),
    ],
)
def test_a_range_that_is_not_what_its_trailer_says_is_refused(tmp_path: Path, data: bytes) -> None:
    assert checked(tmp_path, data).code == 1


def test_a_range_without_entries_says_where_it_stands(tmp_path: Path) -> None:
    end = {"seq": 7, "hash": MADE[6]["hash"]}
    empty = lines([], after=end, head=end)
    found = checked(tmp_path, empty, "--head", HEAD)
    assert (found.code, found.of("NOT CHECKED")) == (0, ["anchors"]), found.text
    assert checked(tmp_path, lines([], after=end, head={**end, "seq": 8})).code == 1


def test_the_evidence_of_named_anchors_comes_from_a_file(
    tmp_path: Path, policy: list[object]
) -> None:
    full = [anchor(MADE[number], witnesses=[9]) for number in (6, 3)]
    names = [{name: each[name] for name in ("seq", "hash")} for each in full]
    data = lines(MADE, names)
    found = checked(tmp_path, data, *policy, *NAMED)
    assert found.of("NOT CHECKED") == ["anchor 1", "anchor 2", "anchors", "chain", "entries 1 to 7"]
    (tmp_path / "anchors").write_text(json.dumps({"data": full, "next_cursor": None}))
    given = ["--anchors", tmp_path / "anchors"]
    found = checked(tmp_path, data, *policy, *NAMED, "--strict", *given)
    assert (found.code, found.last) == (0, "VALID"), found.text
    part = part_of(MADE[4:], names[:1])
    found = checked(tmp_path, part, *policy, *NAMED, "--strict", *given)
    assert (found.code, found.of("VALID").count("anchor 2")) == (0, 0), found.text
    named_twice = checked(tmp_path, lines(MADE, [{**names[0], "hash": "00" * 32}]), *given)
    assert named_twice.of("INVALID") == ["anchor 1"]
    for wrong in ("[]", "{}", '{"data":[1]}', "no"):
        (tmp_path / "anchors").write_text(wrong)
        assert checked(tmp_path, data, *given).code == 2


def test_as_a_program_it_checks_what_is_piped_to_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", verify.__file__, "audit", "/dev/stdin", "--head", HEAD],
        input=lines(MADE),
        check=False,
        capture_output=True,
    )
    assert (done.returncode, done.stderr) == (0, b""), done.stdout
    missing = [sys.executable, "-I", "-S", verify.__file__, "audit", str(tmp_path / "none")]
    assert subprocess.run(missing, check=False, capture_output=True).returncode == 2


def test_a_hundred_anchors_fit_into_a_trailer(tmp_path: Path) -> None:
    line = "\u2014 somebody " + b64encode(bytes(20_000)).decode()
    anchors = [anchor(MADE[number % 7], cosignatures=[line]) for number in range(100)]
    found = checked(tmp_path, lines(MADE, anchors))
    assert found.code == 0, found.text
    assert found.verdicts["anchor 100"] == "VALID"


def test_a_long_chain_is_read_line_by_line(tmp_path: Path) -> None:
    made = entries(500)
    assert checked(tmp_path, lines(made)).code == 0
    long = json.dumps({"a": "x" * verify.MAX_LINE}).encode() + b"\n"
    assert checked(tmp_path, lines(made[:2]) + long).code == 1


def test_a_range_before_the_chain_began_is_empty_and_accuses_nobody(tmp_path: Path) -> None:
    head = {"seq": 0, "hash": "0" * 64}
    told = {"type": "trailer", "entries": 0, "anchors": [], "anchors_total": 0}
    found = checked(tmp_path, verify.write_json({**told, "after": head, "head": head}) + b"\n")
    assert (found.code, found.last) == (1, "INCOMPLETE: trailer")
