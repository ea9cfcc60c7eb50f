"""Anchors of an export: pending ones, quorums, policies, notes."""

from pathlib import Path
from typing import Any

import pytest

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
    lines,
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
