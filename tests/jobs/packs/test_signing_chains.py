"""A signing key's certificate in packs, key set and pages; a certificate for each key."""

import base64
import html
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from sqlalchemy import Engine

from app import clock
from app.core import signing_keys
from app.core.signing_keys import Purpose
from app.evidence.signing_certificates import read_chains
from app.lib.crypto.signing import SigningKey
from app.settings import Settings
from dev.tsa import TimestampAuthority
from tests.support.callers.making import token_to
from tests.support.evidence.anchoring import put_stamp
from tests.support.evidence.packing import Packer, files_in, set_up_as
from tests.support.evidence.signers import DAY, Authority
from tests.support.evidence.verifying import Answer, answer
from tests.support.faults import until
from tests.support.secrets import MASTER_KEYS

SIGNER = "signing-chain.pem"
HOLDER = "Beispiel Zahlungen GmbH"
SECOND = timedelta(seconds=1)


@pytest.fixture(scope="module")
def signing_authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca") / "signing")


def current(packer: Packer) -> SigningKey:
    with packer.runtime.database.across_tenants() as session:
        return signing_keys.current(session, MASTER_KEYS, Purpose.BUNDLE)


@pytest.fixture
def certified(
    trusting: Packer, settings: Settings, signing_authority: Authority
) -> Iterator[Packer]:
    """Return a packer of a service whose current key has a certificate."""
    chains = read_chains(signing_authority.issue(current(trusting)))
    trusted = trusting.runtime.settings.tsa_ca_file
    with set_up_as(trusting, settings, tsa_ca_file=trusted, signing_certificates=chains) as made:
        yield made


def checked(
    packer: Packer, pack: bytes, folder: Path, authority: TimestampAuthority, by: Authority
) -> Answer:
    """Check a pack as an auditor who trusts both authorities and the service's keys."""
    (folder / "pack.zip").write_bytes(pack)
    (folder / "keys.json").write_bytes(packer.api().get("/.well-known/jwks.json").data)
    (folder / "policy").write_text(f"log {packer.api().get('/v1/log/key').text}quorum none\n")
    return answer(
        *(folder / "pack.zip", "--strict", "--key", folder / "keys.json"),
        *("--policy", folder / "policy", "--tsa-ca", authority.ca_file, "--ca", by.root),
    )


def test_a_pack_says_whose_the_key_is_at_the_time_of_its_timestamp(
    certified: Packer,
    admin_engine: Engine,
    authority: TimestampAuthority,
    signing_authority: Authority,
    tmp_path: Path,
) -> None:
    record = certified.record()
    put_stamp(admin_engine, authority)
    built = certified.built(record)
    found = checked(certified, built, tmp_path, authority, signing_authority)
    assert (found.code, found.last) == (0, "VALID"), found.text
    assert f"the key is of '{HOLDER}', according to 'Trust Example'" in found.text


def test_pages_and_key_set_name_whom_the_certificate_names(
    certified: Packer, trusting: Packer
) -> None:
    record = certified.record()
    token, _ = token_to(certified.api(), record)
    shown = certified.api(None).get(f"/s/{token}", headers={"Accept": "text/html"}).text
    assert f"<bdi>{HOLDER}</bdi>, according to <bdi>Trust Example</bdi>" in shown
    without = trusting.api(None).get(f"/s/{token}", headers={"Accept": "text/html"}).text
    assert "no certificate names the owner" in html.unescape(without)
    keys = certified.api(None).get("/.well-known/jwks.json").json["keys"]
    (key,) = [each for each in keys if "x5c" in each]
    assert key["kid"] == record["bundle"]["key_id"]
    (chain,) = certified.runtime.settings.signing_certificates
    raw = [each.public_bytes(Encoding.DER) for each in chain.certificates]
    assert [base64.b64decode(each) for each in key["x5c"]] == raw


def test_a_pack_is_made_anew_once_its_key_has_a_certificate(
    trusting: Packer, certified: Packer
) -> None:
    record = trusting.record()
    before = trusting.built(record)
    assert SIGNER not in files_in(before)
    assert certified.ask(record).headers["x-service-evidence"] == "outdated"
    certified.work()
    after = certified.built(record)
    assert files_in(after)[SIGNER] == certified.runtime.settings.signing_certificates[0].pem
    assert certified.built(record) == after


def test_a_key_that_was_rotated_keeps_its_own_certificate(
    certified: Packer, settings: Settings, signing_authority: Authority
) -> None:
    record = certified.record()
    first = certified.built(record)
    with certified.runtime.database.across_tenants() as session:
        signing_keys.rotate(session, MASTER_KEYS)
    later = certified.record()
    assert SIGNER not in files_in(certified.built(later))
    second = signing_authority.issue(current(certified))
    old = certified.runtime.settings.signing_certificates
    both = (*old, *read_chains(second))
    with set_up_as(certified, settings, signing_certificates=both) as packer:
        for each, chain in ((record, old[0]), (later, both[1])):
            packer.ask(each)
            packer.work()
            assert files_in(packer.built(each))[SIGNER] == chain.pem
    assert files_in(first)[SIGNER] == old[0].pem


@pytest.mark.parametrize("when", ["ended", "begins later", "stamped later"])
def test_a_certificate_vouches_only_for_records_of_its_time(
    trusting: Packer,
    settings: Settings,
    admin_engine: Engine,
    authority: TimestampAuthority,
    signing_authority: Authority,
    when: str,
) -> None:
    record = trusting.record()
    made = datetime.fromisoformat(record["created_at"])
    begin, end = {
        "ended": (made - DAY, made - DAY / 2),
        "begins later": (made + DAY, made + 2 * DAY),
        "stamped later": (made - DAY, made.replace(microsecond=0) + SECOND),
    }[when]
    chains = read_chains(signing_authority.issue(current(trusting), begin=begin, end=end))
    trusted = trusting.runtime.settings.tsa_ca_file
    with set_up_as(trusting, settings, tsa_ca_file=trusted, signing_certificates=chains) as packer:
        if when == "stamped later":
            assert chains[0].covers(made)
            until(lambda: clock.now() > end + SECOND, why="the certificate has not ended")
            put_stamp(admin_engine, authority)
        assert SIGNER not in files_in(packer.built(record))
        with packer.runtime.database.across_tenants() as session:
            problems = signing_keys.certificate_problems(session, chains)
    if when == "begins later":
        assert "is valid from" in problems[0]


def test_certificates_of_unknown_keys_are_named(
    trusting: Packer, signing_authority: Authority
) -> None:
    key, ours = SigningKey.generate(), current(trusting)
    chains = read_chains(signing_authority.issue(key))
    with trusting.runtime.database.across_tenants() as session:
        (problem,) = signing_keys.certificate_problems(session, chains)
    assert key.public.id in problem
    assert ours.public.id in problem
