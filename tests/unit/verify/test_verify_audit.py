"""`verify.py audit` on exported chains: good, cut, changed, written anew, and their anchors."""

import json
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from app.evidence import verify
from app.ledger import hash_chain, leaves, merkle
from app.ledger.checkpoints import Checkpoint
from app.ledger.notes import Note
from app.lib import canonical_json
from tests.support.evidence.verifying import Answer, answer
from tests.unit.verify import packs
from tests.unit.verify.authorities import authority

TENANT = packs.record()["tenant_id"]
CHAIN = leaves.chain_name(bytes(32))
AT = "2026-01-31T12:00:00.123456Z"
DETAILS: Sequence[dict[str, Any]] = [
    {},
    {"hash": "00" * 32, "numbers": [0.5, 1e21, -3], "é": "\U00010000", "prev_hash": None},
    {"deep": {"hash": '"hash":"'}},
]


def entries(
    count: int, tenant: str = TENANT, *, last: str = "key.mint", at: str = AT
) -> list[dict[str, Any]]:
    """The entries of a chain, each with its hash; the last has this action."""
    made: list[dict[str, Any]] = []
    for seq in range(1, count + 1):
        fields = {
            "seq": seq,
            "at": at,
            "tenant_id": tenant,
            "actor": {"type": "operator", "id": None},
            "action": "tenant.create" if seq == 1 else last if seq == count else "key.mint",
            "target": {"type": "tenant", "id": tenant},
            "details": DETAILS[seq % 3],
            "request_id": None,
            "prev_hash": made[-1]["hash"] if made else hash_chain.GENESIS,
        }
        digest = hash_chain.entry_hash(hash_chain.entry_bytes(fields)).hex()
        made.append({**fields, "hash": digest})
    return made


def lines(made: Sequence[dict[str, Any]], anchors: Sequence[Any] = (), **trailer: Any) -> bytes:
    """An export, with a trailer as the service writes it, or with other members than that."""
    end = {"seq": made[-1]["seq"], "hash": made[-1]["hash"]} if made else {"seq": 0, "hash": ""}
    last = {
        "type": "trailer",
        "entries": len(made),
        "head": end,
        "anchors": list(anchors),
        "anchors_total": len(anchors),
    }
    return b"".join(canonical_json.dumps(each) + b"\n" for each in [*made, {**last, **trailer}])


def anchor(
    entry: dict[str, Any], *, witnesses: Sequence[int] = (), chain: bytes = CHAIN, **other: Any
) -> dict[str, Any]:
    """An anchor of an entry in a log of seven leaves."""
    at = "2026-01-31T13:00:00.000000Z"
    leaf = leaves.AuditHead(chain, entry["seq"], bytes.fromhex(entry["hash"]), at)
    hashes = [merkle.leaf_hash(b"%d" % number) for number in range(6)]
    hashes.insert(2, merkle.leaf_hash(leaf.data))
    path = merkle.inclusion_proof(
        2, 7, lambda level, number: merkle.root(hashes[number << level : (number + 1) << level])
    )
    note = Checkpoint(packs.ORIGIN, 7, merkle.root(hashes)).sign(packs.LOG)
    return {
        "seq": entry["seq"],
        "hash": entry["hash"],
        "at": at,
        "chain": chain.hex(),
        "log_proof": {
            "leaf_index": 2,
            "leaf_data": b64encode(leaf.data).decode(),
            "leaf_hash": hashes[2].hex(),
            "tree_size": 7,
            "inclusion": [each.hex() for each in path],
            "checkpoint": str(note),
        },
        "vkey": str(packs.LOG.verifier_key),
        "timestamp": None,
        "tsa_chain": None,
        "cosignatures": [str(packs.cosign(number, note.text)) for number in witnesses],
        **other,
    }


MADE = entries(7)
HEAD = f"7:{MADE[-1]['hash']}"
NAMED = ["--chain", CHAIN.hex()]
NOBODYS = "WHOSE CHAIN THIS IS, IS NOT KNOWN"


@pytest.fixture
def policy(tmp_path: Path) -> list[object]:
    text = f"log {packs.LOG.verifier_key}\nwitness w {packs.witness_key(9)}\nquorum w\n"
    (tmp_path / "policy").write_text(text)
    return ["--policy", tmp_path / "policy"]


def checked(folder: Path, data: bytes, *arguments: object) -> Answer:
    (folder / "chain.ndjson").write_bytes(data)
    return answer("audit", folder / "chain.ndjson", *arguments)


def test_a_chain_alone_agrees_with_itself_and_no_more(tmp_path: Path) -> None:
    found = checked(tmp_path, lines(MADE))
    assert (found.code, found.last) == (0, f"VALID AGAINST THE EXPORT'S OWN KEYS; {NOBODYS}")
    assert found.of("NOT CHECKED") == ["anchors", "chain", "entries 1 to 7"]
    assert checked(tmp_path, lines(MADE), "--strict").code == 2


def test_a_head_that_was_kept_binds_it(tmp_path: Path) -> None:
    found = checked(tmp_path, lines(MADE), "--head", f"3:{MADE[2]['hash']}", "--head", HEAD)
    assert (found.code, found.last) == (0, "VALID, WITH 1 NOT CHECKED")
    assert checked(tmp_path, lines(MADE[:6]), "--head", HEAD).of("INCOMPLETE") == ["head 7"]
    found = checked(tmp_path, lines(entries(9, "ten_other")), "--head", HEAD)
    assert found.of("INVALID") == ["head 7"]
    for wrong in ("7", "7:", HEAD.upper(), "0" + HEAD, "-" + HEAD, HEAD + "0"):
        assert checked(tmp_path, lines(MADE), f"--head={wrong}").code == 2


def test_anchors_in_a_log_that_is_known_bind_it(tmp_path: Path, policy: list[object]) -> None:
    by = authority("p384")
    (tmp_path / "ca.pem").write_bytes(by.chain)
    first, last = anchor(MADE[2], witnesses=[9]), anchor(MADE[6], witnesses=[9, 77])
    note = first["log_proof"]["checkpoint"].encode()
    response = by.stamp(note, datetime(2026, 2, 1, tzinfo=UTC))
    first |= {"timestamp": b64encode(response).decode(), "tsa_chain": by.chain.decode()}
    data = lines(MADE, [first, last])
    outside = [*policy, *NAMED, "--tsa-ca", tmp_path / "ca.pem", "--strict"]
    found = checked(tmp_path, data, *outside)
    assert (found.code, found.last) == (0, "VALID"), found.text
    assert {"anchor 1", "anchor 1 timestamp", "anchor 2 cosignatures"} <= found.verdicts.keys()
    found = checked(tmp_path, data)
    assert (found.code, found.last) == (0, f"VALID AGAINST THE EXPORT'S OWN KEYS; {NOBODYS}")
    # The timestamp of one checkpoint is none of another's.
    last |= {"timestamp": first["timestamp"], "tsa_chain": first["tsa_chain"]}
    assert checked(tmp_path, lines(MADE, [last])).of("INVALID") == ["anchor 1 timestamp"]


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


def test_of_many_anchors_only_the_newest_need_be_listed(tmp_path: Path) -> None:
    found = checked(tmp_path, lines(MADE, [anchor(MADE[1])], anchors_total=700))
    assert (found.code, found.verdicts["anchor 1"]) == (0, "VALID"), found.text


WAITS: dict[str, Any] = {
    "log_proof": None,
    "vkey": None,
    "timestamp": None,
    "tsa_chain": None,
    "cosignatures": [],
}


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


def test_a_tail_that_nothing_covers_is_told(tmp_path: Path, policy: list[object]) -> None:
    """Whoever holds the export can forge what is behind the newest anchor."""
    covered = [anchor(MADE[4], witnesses=[9])]
    forged = [*MADE[:5], hashed(MADE[5] | {"action": "key.revoke"})]
    for made, tail in ((MADE, "entries 6 to 7"), (forged, "entries 6 to 6")):
        found = checked(tmp_path, lines(made, covered), *policy, *NAMED)
        assert (found.code, found.last) == (0, "VALID, WITH 1 NOT CHECKED"), found.text
        assert found.of("NOT CHECKED") == [tail]
        assert f"{tail}: no anchor or head covers them" in found.text
        assert checked(tmp_path, lines(made, covered), *policy, *NAMED, "--strict").code == 2
    found = checked(tmp_path, lines(MADE, covered), *policy, "--head", HEAD, "--strict")
    assert (found.code, found.last) == (0, "VALID"), found.text


def test_a_head_and_a_log_that_nobody_knows_cover_no_more_than_the_head(tmp_path: Path) -> None:
    first = ["--head", f"1:{MADE[0]['hash']}"]
    found = checked(tmp_path, lines(MADE, [anchor(MADE[6])]), *first)
    assert found.of("NOT CHECKED") == ["the log's key", "entries 2 to 7"]
    assert (found.code, found.last) == (0, "VALID, WITH 2 NOT CHECKED")
    assert checked(tmp_path, lines(MADE, [anchor(MADE[6])]), *first, "--strict").code == 2


def test_a_chain_written_anew_with_a_leaf_of_its_own_is_refused_by_its_name(
    tmp_path: Path, policy: list[object]
) -> None:
    """Whoever owns the database can rewrite a chain, and have the log take in a leaf for it."""
    anew = entries(7, at="2026-02-28T12:00:00.000000Z")
    forged = lines(anew, [anchor(anew[6], witnesses=[9], chain=leaves.chain_name(b"\1" * 32))])
    found = checked(tmp_path, forged, *policy)
    assert (found.code, found.last) == (0, f"VALID, WITH 1 NOT CHECKED; {NOBODYS}"), found.text
    assert checked(tmp_path, forged, *policy, "--strict").code == 2
    found = checked(tmp_path, forged, *policy, *NAMED)
    assert (found.code, found.of("INVALID")) == (1, ["chain"]), found.text
    # The name stands in the public log: anybody can write it into a log of their own.
    renamed = lines(anew, [anchor(anew[6])])
    found = checked(tmp_path, renamed, *NAMED)
    assert (found.code, found.of("VALID")) == (0, ["entries", "trailer", "anchor 1"])
    assert found.last == f"VALID AGAINST THE EXPORT'S OWN KEYS; {NOBODYS}"
    assert checked(tmp_path, renamed, *NAMED, "--strict").code == 2


def test_a_head_says_whose_chain_it_is_no_further_than_its_entry(
    tmp_path: Path, policy: list[object]
) -> None:
    """Behind an entry that was kept, a chain can be written anew under another name."""
    first = ["--head", f"1:{MADE[0]['hash']}"]
    data = lines(MADE, [anchor(MADE[6], witnesses=[9], chain=leaves.chain_name(b"\1" * 32))])
    found = checked(tmp_path, data, *policy, *first)
    assert found.last == f"VALID, WITH 1 NOT CHECKED; {NOBODYS} BEHIND ENTRY 1"
    assert checked(tmp_path, data, *policy, *first, "--strict").code == 2
    assert checked(tmp_path, data, *policy, *first, *NAMED).of("INVALID") == ["chain"]
    assert checked(tmp_path, data, *policy, "--head", HEAD, "--strict").last == "VALID"


def test_it_says_whose_chain_it_was_given(tmp_path: Path, policy: list[object]) -> None:
    data = lines(MADE, [anchor(MADE[6], witnesses=[9])])
    for arguments in ([], policy, [*policy, *NAMED], ["--head", HEAD]):
        found = checked(tmp_path, data, *arguments)
        (line,) = [each for each in found.text.splitlines() if " chain: " in each]
        assert TENANT in line
        assert CHAIN.hex() in line
    waits = lines(MADE, [anchor(MADE[6], chain=leaves.chain_name(b"\1" * 32)) | WAITS])
    assert checked(tmp_path, waits, *policy, *NAMED).of("INVALID") == ["chain"]
    for wrong in ("", "00", CHAIN.hex().upper(), CHAIN.hex() + "0", TENANT):
        assert checked(tmp_path, data, f"--chain={wrong}").code == 2


def test_the_export_s_own_entry_is_told_apart(tmp_path: Path, policy: list[object]) -> None:
    """No anchor can cover the entry that an export makes of itself, and ends with."""
    made, strict = entries(7, last="audit.export"), [*policy, *NAMED, "--strict"]
    found = checked(tmp_path, lines(made, [anchor(made[5], witnesses=[9])]), *strict)
    assert (found.code, found.of("NOT CHECKED")) == (0, []), found.text
    assert found.last == "VALID, BUT FOR ENTRY 7, THE EXPORT'S OWN, WHICH NOTHING COVERS"
    # Not if there are more behind the anchor, another action, no anchor that is known, or none.
    for other, covered, named in (
        (made, 4, strict),
        (MADE, 5, strict),
        (entries(8, last="audit.export")[:7], 5, strict),
        (made, 5, [*policy, "--strict"]),
        (made, 5, [*NAMED, "--strict"]),
    ):
        data = lines(other, [anchor(other[covered], witnesses=[9])])
        assert checked(tmp_path, data, *named).code == 2
    alone = [hashed(MADE[0] | {"action": "audit.export"})]
    assert checked(tmp_path, lines(alone), *strict).code == 1
    one = entries(1)
    assert checked(tmp_path, lines(one), *strict).of("NOT CHECKED")[-1] == "entries 1 to 1"


def hashed(fields: dict[str, Any]) -> dict[str, Any]:
    fields = {name: value for name, value in fields.items() if name != "hash"}
    return {**fields, "hash": sha256(canonical_json.dumps(fields)).hexdigest()}


def test_an_entry_of_another_tenant_with_right_hashes_is_refused(tmp_path: Path) -> None:
    strange = hashed(MADE[2] | {"tenant_id": "ten_other"})
    assert checked(tmp_path, lines([*MADE[:2], strange])).of("INVALID") == ["entries"]
    first = hashed(MADE[0] | {"action": "key.mint"})
    assert checked(tmp_path, lines([first])).of("INVALID") == ["entries"]


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


def test_one_flipped_bit_anywhere_in_an_export_is_refused(tmp_path: Path) -> None:
    data = lines(MADE[:3], [anchor(MADE[1], witnesses=[9])])
    (tmp_path / "policy").write_text(
        f"log {packs.LOG.verifier_key}\nwitness w {packs.witness_key(9)}\nquorum w\n"
    )
    assert checked(tmp_path, data, "--policy", tmp_path / "policy").code == 0
    for at in range(0, len(data), 17):
        spoiled = bytearray(data)
        spoiled[at] ^= 1 << at % 8
        found = checked(tmp_path, bytes(spoiled), "--policy", tmp_path / "policy")
        assert found.code == 1, (at, found.text)


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
