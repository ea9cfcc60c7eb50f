"""The time of a timestamp: one reading by the service, by `verify.py` and by OpenSSL.

An authority's certificate is held to that moment.
"""

import re
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from app.evidence import timestamps, verify
from app.evidence.timestamps import NotStamped
from dev.tsa import TimestampAuthority
from tests.support.evidence.verifying import answer
from tests.unit.verify.authorities import Authority, authority
from tests.unit.verify.pack.checking import POLICY
from tests.unit.verify.stamped_packs import EVIDENCE, MOMENT, checked, stamped

GOLDEN = Path(__file__).parent / "golden"
ACCURACY = "accuracy = secs:1, millisecs:500, microsecs:100\n"


def read_by_service(response: bytes, by: bytes) -> str:
    roots = timestamps.read_certificates(by)
    return timestamps.verify(response, EVIDENCE.checkpoint, roots).time


def read_by_verifier(response: bytes, by: bytes) -> str:
    return verify.check_timestamp(response, EVIDENCE.checkpoint, by, None)


def read_by_openssl(folder: Path, response: bytes) -> str:
    """The time in the words of `openssl ts`, in RFC 3339."""
    (folder / "reply.tsr").write_bytes(response)
    command = ["openssl", "ts", "-reply", "-in", "reply.tsr", "-text"]
    said = subprocess.run(command, cwd=folder, check=True, capture_output=True).stdout.decode()
    found = re.search(r"^Time stamp: (\w+ +\d+ [\d:]+)(\.\d+)? (\d{4}) GMT$", said, re.MULTILINE)
    assert found is not None, said
    second = datetime.strptime(f"{found[1]} {found[3]}", "%b %d %H:%M:%S %Y").replace(tzinfo=UTC)
    return f"{second:%Y-%m-%dT%H:%M:%S}{found[2] or ''}Z"


@pytest.mark.parametrize("digits", [0, 3, 6])
@pytest.mark.parametrize("more", ["", ACCURACY, "ordering = yes\ntsa_name = yes\n"], ids=repr)
def test_a_time_is_read_with_the_digits_that_openssl_sent(
    tmp_path: Path, digits: int, more: str
) -> None:
    authority = TimestampAuthority(
        tmp_path / "tsa", configured=f"clock_precision_digits = {digits}\n{more}"
    )
    root = authority.ca_file.read_bytes()
    asked = timestamps.request(EVIDENCE.checkpoint)
    response = authority.reply(asked.as_bytes())
    said = read_by_openssl(tmp_path, response)
    roots = timestamps.read_certificates(root)
    stamp = timestamps.check(response, asked, EVIDENCE.checkpoint, roots)
    assert [stamp.time, read_by_service(response, root), read_by_verifier(response, root)] == [
        said
    ] * 3
    (tmp_path / "ca.pem").write_bytes(root)
    found = checked(tmp_path, stamped(response, root, stamp.time), "--tsa-ca", tmp_path / "ca.pem")
    assert (found.code, found.verdicts["checkpoint.tsr"]) == (0, "VALID"), found.text
    assert f"a timestamp of the checkpoint at {said}\n" in found.text


@pytest.mark.parametrize(
    "fraction", ["", ".5", ".591", ".591234", ".5912345", ".591234567", ".0000001"]
)
def test_service_and_verifier_read_each_fraction_alike(
    tmp_path: Path, p256: Authority, fraction: str
) -> None:
    response = p256.stamp(EVIDENCE.checkpoint, MOMENT, fraction=fraction)
    time = f"2026-02-01T12:00:00{fraction}Z"
    assert read_by_service(response, p256.chain) == read_by_verifier(response, p256.chain) == time
    found = checked(tmp_path, stamped(response, p256.chain, time))
    assert (found.code, found.verdicts["checkpoint.tsr"]) == (0, "VALID"), found.text


@pytest.mark.parametrize("fraction", [".", ".0", ".50", ".000", ",5", "+0000", ".5Z"])
def test_service_and_verifier_refuse_the_same_times(p256: Authority, fraction: str) -> None:
    response = p256.stamp(EVIDENCE.checkpoint, MOMENT, fraction=fraction)
    with pytest.raises(NotStamped):
        read_by_service(response, p256.chain)
    with pytest.raises(verify.Invalid):
        read_by_verifier(response, p256.chain)


@pytest.mark.parametrize(
    "time",
    [
        "2026-02-01T12:00:00Z",
        "2026-02-01T12:00:00.59Z",
        "2026-02-01T12:00:00.591000Z",
        "2026-02-01T12:00:00.592Z",
        "2026-02-01T12:00:01.591Z",
    ],
)
def test_a_pack_that_tells_of_another_time_is_refused(
    tmp_path: Path, p256: Authority, time: str
) -> None:
    response = p256.stamp(EVIDENCE.checkpoint, MOMENT, fraction=".591")
    found = checked(tmp_path, stamped(response, p256.chain, time))
    assert (found.code, found.of("INVALID")) == (1, ["checkpoint.tsr"]), found.text


@pytest.mark.parametrize("name", ["whole-seconds", "milliseconds"])
def test_packs_of_the_first_form_stay_valid(name: str) -> None:
    """Made by release 0.1.0, which told the time in microseconds, and cut it to whole seconds."""
    found = answer(GOLDEN / f"v1-{name}.zip")
    assert (found.code, found.verdicts["checkpoint.tsr"]) == (0, "VALID"), found.text
    assert found.last == "VALID AGAINST THE PACK'S OWN KEYS"


def test_packs_without_further_files_stay_valid(tmp_path: Path) -> None:
    """Made by release 0.3, before findings went into packs."""
    (tmp_path / "policy").write_text(POLICY)
    found = answer(GOLDEN / "v2.zip", "--policy", tmp_path / "policy")
    assert (found.code, found.last) == (0, "VALID AGAINST THE PACK'S OWN KEYS"), found.text
    assert "findings.json" not in found.verdicts
    assert found.verdicts["cosignatures"] == "VALID"


NOW = datetime(2026, 2, 1, tzinfo=UTC)
DAY = timedelta(days=1)
SIGNER_NAMED = r"the authority's certificate \(CN=signer\)"


@pytest.mark.parametrize(
    ("begin", "end", "why"),
    [
        (NOW - 9 * DAY, NOW - DAY, f"{SIGNER_NAMED} had expired: it was valid until 2026-01-31"),
        (NOW + DAY, NOW + 9 * DAY, f"{SIGNER_NAMED} was not valid yet: it is from 2026-02-02T"),
    ],
)
def test_a_certificate_that_had_ended_or_not_begun_is_named_in_words(
    begin: datetime, end: datetime, why: str
) -> None:
    by = authority(begin=begin, end=end)
    with pytest.raises(NotStamped, match=why):
        timestamps.verify(by.stamp(b"checkpoint", NOW), b"checkpoint", by.above)


def test_a_certificate_is_held_to_the_moment_of_the_timestamp() -> None:
    by = authority(begin=NOW - DAY, end=NOW + DAY)
    stamp = timestamps.verify(by.stamp(b"checkpoint", NOW), b"checkpoint", by.above)
    assert stamp.gen_time == NOW
