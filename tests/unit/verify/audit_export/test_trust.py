"""Heads, names and logs from outside that bind an export."""

from base64 import b64encode
from datetime import UTC, datetime
from pathlib import Path

from app.ledger import leaves
from tests.unit.verify.audit_export.exports import (
    CHAIN,
    HEAD,
    MADE,
    NAMED,
    NOBODYS,
    TENANT,
    WAITS,
    anchor,
    checked,
    entries,
    hashed,
    lines,
)
from tests.unit.verify.authorities import authority


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


def test_a_head_and_an_unknown_log_cover_no_more_than_the_head(tmp_path: Path) -> None:
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
