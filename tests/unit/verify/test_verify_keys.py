"""`verify.py` on keys that ended, and on files of the caller's as other systems save them."""

import codecs
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from app.evidence import pack
from tests.support.evidence.verifying import Answer, answer
from tests.support.servers.certificates import BEGIN, END
from tests.unit.verify import packs
from tests.unit.verify.authorities import Authority, authority
from tests.unit.verify.pack.checking import TOLD
from tests.unit.verify.stamped_packs import with_stamp

MADE = datetime(2026, 1, 31, 12, 0, 0, 123456, UTC)  # as the bundle says
STAMPED = datetime(2026, 2, 1, tzinfo=UTC)
COSIGNED = datetime.fromtimestamp(packs.SECONDS, UTC)
SECOND = timedelta(seconds=1)
QUORUM = f"""log {packs.LOG.verifier_key}
witness a {packs.witness_key(9)}
witness b {packs.witness_key(10)}
group g any a b
quorum g
"""
TIME = "time of bundle.sig"
SESSION_TIME = "time of session-statement.sig"
Made = Callable[..., Answer]


def at(moment: datetime | None) -> str | None:
    return None if moment is None else moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def jwk(
    key: Any = packs.KEY,
    *,
    retired: datetime | None = None,
    revoked: datetime | None = None,
    **others: Any,
) -> dict[str, Any]:
    told = {"retired_at": at(retired), "revoked_at": at(revoked), "revocation_reason": None}
    return {**key.public.jwk, "purpose": "bundle", **told, **others}


def key_set(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()


@pytest.fixture
def check(tmp_path: Path, p256: Authority) -> Made:
    """Check a pack with these keys; `stamped` and `witnesses` vouch, `trusting` whom is asked."""

    def made(
        *keys: dict[str, Any],
        stamped: datetime | None = None,
        witnesses: Sequence[int] = (),
        trusting: str = "",
        options: Sequence[object] = (),
        **others: Any,
    ) -> Answer:
        evidence = packs.evidence(witnesses=witnesses, **others)
        if stamped is not None:
            evidence = with_stamp(evidence, p256, stamped)
        (tmp_path / "pack.zip").write_bytes(b"".join(pack.write(evidence)))
        (tmp_path / "keys.json").write_bytes(key_set(*keys))
        (tmp_path / "ca.pem").write_bytes(p256.chain)
        quorum = QUORUM if "witnesses" in trusting else QUORUM.replace("quorum g", "quorum none")
        (tmp_path / "policy").write_text(quorum)
        asked: list[object] = [tmp_path / "pack.zip", "--key", tmp_path / "keys.json"]
        asked += ["--policy", tmp_path / "policy"]
        asked += ["--tsa-ca", tmp_path / "ca.pem"] if "tsa" in trusting else []
        return answer(*asked, *options)

    return made


def test_a_key_that_did_not_end_asks_for_no_time(check: Made) -> None:
    found = check(jwk(), options=["--strict"])
    assert (found.code, found.last) == (0, "VALID"), found.text
    assert TIME not in found.verdicts


def test_a_bundle_that_says_it_was_made_after_its_key_was_retired_is_invalid(check: Made) -> None:
    found = check(jwk(retired=MADE - SECOND))
    assert found.of("INVALID") == [SESSION_TIME, TIME, "time of SHA256SUMS.sig"]
    assert found.code == 1
    assert "it says itself that it was made at 2026-01-31T12:00:00.123456Z" in found.text


def test_a_bundle_that_was_in_the_log_by_then_was_signed_before_whatever_it_says(
    check: Made,
) -> None:
    trusted = {"stamped": (MADE - 2 * SECOND).replace(microsecond=0), "trusting": "tsa"}
    found = check(
        jwk(retired=MADE - SECOND),
        jwk(packs.NEXT_KEY),
        pack_key=packs.NEXT_KEY,
        files={},
        **trusted,
    )
    assert (found.code, found.verdicts[TIME]) == (0, "VALID"), found.text


@pytest.mark.parametrize("vouching", ["tsa", "witnesses"])
def test_what_others_saw_in_time_shows_that_a_bundle_is_older_than_its_keys_end(
    check: Made, vouching: str
) -> None:
    seen = STAMPED if vouching == "tsa" else COSIGNED
    evidence: dict[str, Any] = {"stamped": STAMPED} if vouching == "tsa" else {"witnesses": [9]}
    for end in ("retired", "revoked"):
        found = check(jwk(**{end: seen}), trusting=vouching, **evidence)
        assert (found.code, found.verdicts[TIME]) == (0, "VALID"), found.text
        late = check(jwk(**{end: seen - SECOND}), trusting=vouching, **evidence)
        assert late.verdicts[TIME] == ("NOT CHECKED" if end == "retired" else "INVALID")


def test_without_others_it_is_the_signers_own_word_that_it_is_older(check: Made) -> None:
    found = check(jwk(retired=MADE))
    assert (found.code, found.verdicts[TIME]) == (0, "NOT CHECKED"), found.text
    assert check(jwk(retired=MADE), options=["--strict"]).code == 2


@pytest.mark.parametrize(
    "evidence",
    [
        {},
        {"stamped": STAMPED},
        {"witnesses": [9, 10]},
        {"witnesses": [11], "trusting": "witnesses"},
    ],
    ids=["nobody", "an authority only the pack trusts", "witnesses nobody needs", "a stranger"],
)
def test_with_a_revoked_key_nothing_counts_but_what_trusted_others_saw_before(
    check: Made, evidence: dict[str, Any]
) -> None:
    revoked = jwk(revoked=COSIGNED + SECOND, retired=COSIGNED, revocation_reason="it leaked")
    found = check(revoked, **evidence)
    assert TIME in found.of("INVALID")
    assert found.code == 1
    assert "(it leaked)" in found.text


def test_a_key_in_pem_beside_the_set_does_not_take_its_revocation_back(
    check: Made, tmp_path: Path
) -> None:
    (tmp_path / "key.pem").write_bytes(packs.KEY.public.pem)
    before = key_set(jwk(retired=COSIGNED))
    (tmp_path / "before.json").write_bytes(before)
    others = ["--key", tmp_path / "key.pem", "--key", tmp_path / "before.json"]
    found = check(jwk(revoked=COSIGNED), options=others)
    assert found.verdicts[TIME] == "INVALID"


def test_a_witness_that_is_late_does_not_put_off_the_quorum_of_the_others(tmp_path: Path) -> None:
    note = packs.evidence()
    text = note.cosigned.text
    late = packs.cosign(10, text, packs.SECONDS + 99)
    evidence = replace(note, cosignatures=[packs.cosign(9, text), late])
    (tmp_path / "pack.zip").write_bytes(b"".join(pack.write(evidence)))
    (tmp_path / "policy").write_text(QUORUM)
    options = ["--policy", tmp_path / "policy", "--key", tmp_path / "keys.json"]
    for quorum, found in (("any", "VALID"), ("all", "INVALID")):
        (tmp_path / "policy").write_text(QUORUM.replace("g any", f"g {quorum}"))
        (tmp_path / "keys.json").write_bytes(key_set(jwk(revoked=COSIGNED)))
        assert answer(tmp_path / "pack.zip", *options).verdicts[TIME] == found


def test_a_set_that_has_a_revoked_key_twice_says_that_it_was_revoked(check: Made) -> None:
    assert check(jwk(revoked=COSIGNED), jwk()).verdicts[TIME] == "INVALID"


def test_a_revoked_key_vouches_for_nothing_that_only_the_pack_says(check: Made) -> None:
    found = check(jwk(revoked=COSIGNED), witnesses=[9], trusting="witnesses")
    assert found.code == 0
    assert set(found.of("NOT CHECKED")) == {"pack-key.pem", SESSION_TIME, *TOLD}
    assert found.last.endswith("THE BUNDLE IS BY YOUR KEY, WHO PACKED IT IS NOT KNOWN")


@pytest.mark.parametrize("later", [{"stamped": STAMPED}, {"witnesses": [9]}])
def test_a_pack_that_holds_what_is_later_than_its_keys_end_is_invalid(
    check: Made, later: dict[str, Any]
) -> None:
    found = check(jwk(), jwk(packs.NEXT_KEY, retired=MADE), pack_key=packs.NEXT_KEY, **later)
    assert found.of("INVALID") == ["time of SHA256SUMS.sig"]
    kept = jwk(packs.NEXT_KEY, retired=COSIGNED)
    assert check(jwk(), kept, pack_key=packs.NEXT_KEY, **later).code == 0


@pytest.mark.parametrize("name", ["retired_at", "revoked_at"])
@pytest.mark.parametrize(
    "told", ["", 0, 1770000000, "2026-01-31", "2026-01-31T12:00:00Z", "2026-01-31T12:00:00.000000"]
)
def test_a_set_with_an_end_that_cannot_be_read_is_refused(
    check: Made, name: str, told: object
) -> None:
    found = check({**jwk(), name: told})
    assert (found.code, found.last[:18]) == (2, "COULD NOT BE READ:")
    assert "is not a time" in found.last


# Files of the caller's.

BEGINNINGS = {
    "utf-8": b"",
    "utf-8-sig": codecs.BOM_UTF8,
    "utf-16-le": codecs.BOM_UTF16_LE,
    "utf-16-be": codecs.BOM_UTF16_BE,
}


def saved(text: bytes, encoding: str) -> bytes:
    """A text as PowerShell's `>` or an editor on Windows writes it."""
    windows = text.decode().replace("\n", "\r\n")
    return BEGINNINGS[encoding] + windows.encode(encoding.removesuffix("-sig"))


@pytest.mark.parametrize("encoding", BEGINNINGS)
@pytest.mark.parametrize("pem", [False, True])
def test_files_are_read_as_windows_saves_them(
    check: Made, tmp_path: Path, p256: Authority, encoding: str, pem: bool
) -> None:
    check(jwk(), stamped=STAMPED, witnesses=[9])
    files = {"k": packs.KEY.public.pem if pem else key_set(jwk()), "p": QUORUM.encode()}
    for name, text in {**files, "ca": p256.chain}.items():
        (tmp_path / name).write_bytes(saved(text, encoding))
    named = {"--key": "k", "--policy": "p", "--tsa-ca": "ca"}
    options = [each for option, name in named.items() for each in (option, tmp_path / name)]
    found = answer(tmp_path / "pack.zip", *options, "--strict")
    assert (found.code, found.last) == (0, "VALID"), found.text


def test_utf_16_without_a_mark_is_named(check: Made, tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(QUORUM.encode("utf-16-le"))
    for option in ("--policy", "--key", "--tsa-ca"):
        found = check(jwk(), options=[option, tmp_path / "bad"])
        assert (found.code, "UTF-16" in found.last) == (2, True), found.text


@pytest.mark.parametrize(
    ("begin", "end", "why"),
    [
        (BEGIN, STAMPED - SECOND, "had expired: it was valid until 2026-01-31T23:59:59"),
        (STAMPED + SECOND, END, "was not valid yet: from 2026-02-01T00:00:01"),
    ],
)
def test_an_authority_whose_certificate_had_expired_is_named_in_words(
    tmp_path: Path, begin: datetime, end: datetime, why: str
) -> None:
    expired = authority(begin=begin, end=end)
    data = b"".join(pack.write(with_stamp(packs.evidence(), expired, STAMPED)))
    (tmp_path / "pack.zip").write_bytes(data)
    found = answer(tmp_path / "pack.zip")
    assert found.verdicts["checkpoint.tsr"] == "INVALID"
    assert f"made (2026-02-01T00:00:00.000000Z), a certificate of its authority {why}" in found.text
