"""Who signs, as a certificate authority says: by `openssl`, in settings, packs and `verify.py`."""

import random
import ssl
import subprocess
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from app.evidence import pack, signing_certificates, verify
from app.evidence.pack import Inconsistent
from app.evidence.signing_certificates import read_chains
from tests.support.evidence import signers
from tests.support.evidence.signers import DAY, ISSUER, LEAF, Authority, unchecked
from tests.support.evidence.verifying import Answer
from tests.unit.verify import packs
from tests.unit.verify.authorities import authority as stamp_authority
from tests.unit.verify.authorities import der
from tests.unit.verify.pack.checking import POLICY, checked, files_of, resealed
from tests.unit.verify.stamped_packs import MOMENT, with_stamp

EVIDENCE = packs.evidence(witnesses=[9, 10])
SEEN = datetime.fromtimestamp(packs.SECONDS, UTC)
SAID = (
    "the key is of 'Beispiel Zahlungen GmbH', according to 'Trust Example', whose certificates were"
    " valid at 2026-02-02T02:40:00.000000Z"
)
SIGNER = "signing-chain.pem"


@pytest.fixture(scope="module")
def p256(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca") / "p256")


def packed(chain: bytes, evidence: pack.Evidence = EVIDENCE) -> bytes:
    return b"".join(pack.write(replace(evidence, chain=unchecked(chain))))


def verdict(folder: Path, by: Authority, data: bytes, *options: object) -> Answer:
    """Return what is said to an auditor who trusts the root, a policy and the service's key."""
    (folder / "policy").write_text(POLICY)
    (folder / "key.pem").write_bytes(packs.KEY.public.pem)
    roots = ("--key", folder / "key.pem", "--policy", folder / "policy", "--ca", by.root)
    return checked(folder, data, *(options or roots))


@pytest.mark.parametrize("kind", signers.KNOWN)
def test_a_chain_by_a_real_authority_names_who_signed(tmp_path: Path, kind: str) -> None:
    by = Authority(tmp_path / "ca", kind)
    (chain,) = read_chains(by.issue(packs.KEY))
    assert (chain.key, chain.holder) == (packs.KEY.public, "Beispiel Zahlungen GmbH")
    assert chain.authority == "Trust Example"
    data = b"".join(pack.write(replace(EVIDENCE, chain=chain)))
    files = files_of(data)
    assert files[SIGNER] == chain.pem
    said = "Signed by:   Beispiel Zahlungen GmbH, according to Trust Example"
    assert said in files["README.txt"].decode()
    assert "<bdi>Beispiel Zahlungen GmbH</bdi>, according to" in files["record.html"].decode()
    found = verdict(tmp_path, by, data)
    assert (found.code, found.last) == (0, "VALID"), found.text
    assert f"{SIGNER}: {SAID}" in found.text
    (tmp_path / SIGNER).write_bytes(files[SIGNER])
    done = subprocess.run(
        [
            *("openssl", "verify", "-attime", str(packs.SECONDS)),
            *("-CAfile", by.root, "-untrusted", SIGNER, SIGNER),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == f"{SIGNER}: OK\n", done.stderr


def test_a_request_is_one_that_openssl_verifies(tmp_path: Path) -> None:
    asked = signing_certificates.request(packs.KEY, signers.SUBJECT)
    done = subprocess.run(
        ["openssl", "req", "-verify", "-noout", "-subject", "-pubkey"],
        input=asked,
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )
    assert b"verify OK" in done.stderr
    assert packs.KEY.public.pem in done.stdout
    assert b"Beispiel Zahlungen GmbH" in done.stdout
    with pytest.raises(ValueError, match="country: "):
        signing_certificates.request(packs.KEY, {"country": "Germany"})


def test_without_a_root_or_a_trusted_time_a_chain_is_not_checked(
    tmp_path: Path, p256: Authority
) -> None:
    data = packed(p256.issue(packs.KEY))
    (tmp_path / "policy").write_text(POLICY)
    found = verdict(tmp_path, p256, data, "--policy", tmp_path / "policy")
    assert found.verdicts[SIGNER] == "NOT CHECKED"
    assert "only the pack says that the key is of 'Beispiel Zahlungen GmbH'" in found.text
    found = verdict(tmp_path, p256, data, "--ca", p256.root)
    assert found.verdicts[SIGNER] == "NOT CHECKED"
    assert "for which time is not known" in found.text
    assert found.last == "VALID AGAINST THE PACK'S OWN KEYS"
    assert verdict(tmp_path, p256, data, "--ca", p256.root, "--strict").code == 2


def test_a_pack_without_certificates_has_none_to_hold_to_a_root(
    tmp_path: Path, p256: Authority
) -> None:
    data = b"".join(pack.write(EVIDENCE))
    found = verdict(tmp_path, p256, data)
    assert found.of("NOT CHECKED") == [SIGNER]
    text = files_of(data)["record.html"].decode().replace("\n", " ")
    assert "whom the operator of this service says: no certificate names the owner" in text


def test_the_time_of_a_trusted_timestamp_decides(tmp_path: Path, p256: Authority) -> None:
    by = stamp_authority()
    evidence = with_stamp(packs.evidence(), by)
    (tmp_path / "tsa.pem").write_bytes(by.chain)
    roots = ("--ca", p256.root, "--tsa-ca", tmp_path / "tsa.pem")
    until = p256.issue(packs.KEY, end=MOMENT)
    assert verdict(tmp_path, p256, packed(until, evidence), *roots).verdicts[SIGNER] == "VALID"
    ended = p256.issue(packs.KEY, end=MOMENT - DAY)
    found = verdict(tmp_path, p256, packed(ended, evidence), *roots)
    assert (found.code, found.verdicts[SIGNER]) == (1, "INVALID")
    assert "had expired" in found.text
    later = p256.issue(packs.KEY, begin=MOMENT + DAY)
    found = verdict(tmp_path, p256, packed(later, evidence), *roots)
    assert (found.code, found.verdicts[SIGNER]) == (1, "INVALID")
    assert "was not valid yet" in found.text
    # The pack's own word on the authority of its timestamp is no time to hold a chain to.
    alone = ("--ca", p256.root)
    assert (
        verdict(tmp_path, p256, packed(ended, evidence), *alone).verdicts[SIGNER] == "NOT CHECKED"
    )


@pytest.mark.parametrize(
    ("extensions", "status"),
    [
        (LEAF + "extendedKeyUsage = emailProtection\n", "VALID"),
        (LEAF + "extendedKeyUsage = 1.3.6.1.5.5.7.3.36, clientAuth\n", "VALID"),
        ("keyUsage = digitalSignature\n", "VALID"),
        (LEAF + "extendedKeyUsage = serverAuth, clientAuth\n", "INVALID"),
        (LEAF + "extendedKeyUsage = critical, timeStamping\n", "INVALID"),
        ("basicConstraints = CA:false\nkeyUsage = critical, keyAgreement\n", "INVALID"),
        (LEAF + "1.2.3.4 = critical, ASN1:NULL\n", "NOT CHECKED"),
        (LEAF + "1.2.3.4 = ASN1:NULL\n", "VALID"),
    ],
)
def test_what_a_certificate_is_for_counts(
    tmp_path: Path, p256: Authority, extensions: str, status: str
) -> None:
    chain = p256.issue(packs.KEY, extensions)
    assert verdict(tmp_path, p256, packed(chain)).verdicts[SIGNER] == status
    if status == "VALID":
        assert len(read_chains(chain)) == 1
    else:
        with pytest.raises(ValueError, match=f"the chain of the key {packs.KEY.public.id}: "):
            read_chains(chain)


@pytest.mark.parametrize(
    ("extensions", "status"),
    [
        ("basicConstraints = critical, CA:false\nkeyUsage = critical, keyCertSign\n", "INVALID"),
        ("keyUsage = critical, keyCertSign\n", "INVALID"),
        ("basicConstraints = CA:true\nkeyUsage = critical, digitalSignature\n", "INVALID"),
        (ISSUER + "extendedKeyUsage = serverAuth\n", "INVALID"),
        (ISSUER + "extendedKeyUsage = emailProtection\n", "VALID"),
        (ISSUER + "nameConstraints = critical, permitted;DNS:example.test\n", "NOT CHECKED"),
        (ISSUER + "nameConstraints = permitted;DNS:example.test\n", "NOT CHECKED"),
        (ISSUER + "policyConstraints = critical, requireExplicitPolicy:0\n", "NOT CHECKED"),
    ],
)
def test_an_issuer_must_be_one_and_limits_that_are_not_understood_do_not_pass(
    tmp_path: Path, extensions: str, status: str
) -> None:
    by = Authority(tmp_path / "ca")
    by.make_key("odd")
    by.sign("odd", by.asked("odd", "/O=Odd/CN=Odd CA"), extensions, by="root")
    chain = by.issue(packs.KEY, by="odd")
    found = verdict(tmp_path, by, packed(chain))
    assert found.verdicts[SIGNER] == status, found.text
    if status != "VALID":
        with pytest.raises(ValueError, match="certificate"):
            read_chains(chain)


def test_a_length_of_path_is_kept(tmp_path: Path) -> None:
    by = Authority(tmp_path / "ca")
    by.make_key("short")
    short = ISSUER.replace("CA:true", "CA:true, pathlen:0")
    by.sign("short", by.asked("short", "/CN=Short"), short, by="root")
    by.make_key("low")
    by.sign("low", by.asked("low", "/CN=Low"), by="short")
    leaf = by.issue(packs.KEY, by="low")
    root = by.root.read_bytes()
    chain = leaf.removesuffix(root) + (tmp_path / "ca" / "short.pem").read_bytes() + root
    assert verdict(tmp_path, by, packed(chain)).verdicts[SIGNER] == "INVALID"
    with pytest.raises(ValueError, match="a certificate in the chain may not issue this one"):
        read_chains(chain)


@pytest.mark.parametrize(("between", "status"), [(8, "VALID"), (9, "INVALID")])
def test_a_chain_has_ten_certificates_at_most(tmp_path: Path, between: int, status: str) -> None:
    by, above, chain = (
        Authority(tmp_path / "ca"),
        "root",
        (tmp_path / "ca" / "root.pem").read_bytes(),
    )
    for number in range(between):
        name = f"ca{number}"
        by.make_key(name)
        by.sign(name, by.asked(name, f"/CN=CA {number}"), by=above)
        above, chain = name, (by.folder / f"{name}.pem").read_bytes() + chain
    leaf = split(by.issue(packs.KEY, by=above))[0].encode()
    assert verdict(tmp_path, by, packed(leaf + chain)).verdicts[SIGNER] == status


def forged(by: Authority) -> dict[str, bytes]:
    """Return chains by whom the root has not trusted with it, and with other parts."""
    true = by.issue(packs.KEY)
    leaf, middle, root = (each.encode() for each in split(true))
    other = Authority(by.folder.parent / "other")
    theirs = other.issue(packs.KEY)
    by.sign("endentity", by.asked("middle", "/O=Nobody/CN=Leaf"), LEAF, by="root")
    return {
        "another root of the same name": theirs,
        "their leaf below our intermediate": split(theirs)[0].encode() + middle + root,
        "a leaf alone": leaf,
        "a root alone in the middle": leaf + root,
        "an intermediate that is a leaf": leaf + (by.folder / "endentity.pem").read_bytes() + root,
    }


def split(pem: bytes) -> list[str]:
    end = "-----END CERTIFICATE-----\n"
    return [f"{each}{end}" for each in pem.decode().split(end)[:-1]]


def test_a_chain_that_leads_elsewhere_is_invalid(tmp_path: Path) -> None:
    by = Authority(tmp_path / "ca")
    for name, chain in forged(by).items():
        found = verdict(tmp_path, by, packed(chain))
        assert (found.code, found.verdicts[SIGNER]) == (1, "INVALID"), (name, found.text)


def test_a_signature_with_a_flipped_bit_or_by_another_key_is_invalid(
    tmp_path: Path, p256: Authority
) -> None:
    leaf, *issuers = unchecked(p256.issue(packs.KEY)).certificates
    raw = bytearray(verify.certificates(unchecked(p256.issue(packs.KEY)).pem)[0].raw)
    for at in (len(raw) - 1, 40, 150, 250):
        spoiled = bytearray(raw)
        spoiled[at] ^= 1
        text = b"-----BEGIN CERTIFICATE-----\n%s\n-----END CERTIFICATE-----\n"
        pem = text % verify.to_base64(bytes(spoiled)).encode()
        rest = b"".join(split(p256.issue(packs.KEY))[1].encode() for _ in issuers)
        files = files_of(packed(p256.issue(packs.KEY))) | {SIGNER: pem + rest}
        found = verdict(tmp_path, p256, resealed(files))
        assert (found.code, found.verdicts[SIGNER]) == (1, "INVALID"), (at, found.text)
    assert leaf.subject.rfc4514_string() == "CN=Records,O=Beispiel Zahlungen GmbH,C=DE"


def test_a_certificate_of_another_key_is_refused_wherever_it_comes_in(
    tmp_path: Path, p256: Authority
) -> None:
    other = p256.issue(packs.NEXT_KEY)
    with pytest.raises(Inconsistent, match="another key"):
        packed(other)
    mine = p256.issue(packs.KEY)
    for chain in (other, split(other)[0].encode() + mine):
        files = files_of(packed(mine)) | {SIGNER: chain}
        found = verdict(tmp_path, p256, resealed(files))
        assert (found.code, found.verdicts[SIGNER]) == (1, "INVALID"), found.text


@pytest.mark.parametrize(
    ("order", "why"),
    [
        ([1, 0, 2], "begin with the one of the signing key"),
        ([2, 1, 0], "begin with the one of the signing key"),
        ([0, 2, 1], "put each certificate before that of its issuer"),
        ([0, 2], "put each certificate before that of its issuer"),
        ([0, 1, 2, 0], "the key has two"),
    ],
)
def test_certificates_in_another_order_are_refused_in_words(
    p256: Authority, order: list[int], why: str
) -> None:
    parts = split(p256.issue(packs.KEY))
    with pytest.raises(ValueError, match=why):
        read_chains("".join(parts[each] for each in order).encode())


def test_several_keys_have_a_chain_each(p256: Authority) -> None:
    both = p256.issue(packs.KEY) + b"\n" + p256.issue(packs.NEXT_KEY)
    assert [each.key for each in read_chains(both)] == [packs.KEY.public, packs.NEXT_KEY.public]


def test_certificates_of_other_kinds_are_refused_in_words(tmp_path: Path, p256: Authority) -> None:
    p256.make_key("web")
    web = p256.sign("web", p256.asked("web", "/O=Web"), LEAF)
    with pytest.raises(ValueError, match="not of an Ed25519 key"):
        read_chains(web)
    apart = p256.issue(packs.KEY, begin=signers.BEGIN - 9 * DAY, end=signers.BEGIN - DAY)
    with pytest.raises(ValueError, match="at no time valid together"):
        read_chains(apart)
    by = Authority(tmp_path / "weak", "p256")
    by.make_key("p521", "p521")
    by.sign("p521", by.asked("p521", "/CN=P-521"), by="root")
    chain = by.issue(packs.KEY, by="p521")
    with pytest.raises(ValueError, match="is a curve this program does not check"):
        read_chains(chain)
    assert verdict(tmp_path, by, packed(chain)).verdicts[SIGNER] == "NOT CHECKED"


def test_a_name_may_not_command_a_terminal(tmp_path: Path, p256: Authority) -> None:
    evil = {"organization": "Evil\u202e \x1b[2J' according to 'The State", "common_name": "x"}
    leaf = p256.sign("leaf", signing_certificates.request(packs.KEY, evil), LEAF)
    chain: Any = leaf + (p256.folder / "middle.pem").read_bytes()
    found = verdict(tmp_path, p256, packed(chain))
    assert "\x1b" not in found.text
    assert "\u202e" not in found.text
    assert found.verdicts[SIGNER] == "VALID"


def test_a_chain_changed_within_sound_sums_is_never_valid(tmp_path: Path, p256: Authority) -> None:
    """Whoever holds the pack's key may write any chain: only one that says the same is VALID."""
    true = p256.issue(packs.KEY)
    files, random_ = files_of(packed(true)), random.Random(20261126)
    same = [each.raw for each in verify.certificates(files[SIGNER])]
    valid = 0
    for _ in range(120):
        spoiled = bytearray(files[SIGNER])
        for _ in range(random_.randint(1, 2)):
            at = random_.randrange(len(spoiled))
            spoiled[at : at + random_.randrange(3)] = random_.randbytes(random_.randrange(3))
        found = verdict(tmp_path, p256, resealed(files | {SIGNER: bytes(spoiled)}))
        assert found.code in (0, 1), found.text
        if found.verdicts[SIGNER] == "VALID":
            told = verify.certificates(bytes(spoiled))
            assert [each.raw for each in told][:2] == same[:2]
            valid += 1
    assert valid < 60


def test_large_nonsense_in_a_chain_is_refused_in_good_time(tmp_path: Path, p256: Authority) -> None:
    empty, day = der(0x30), der(0x17, b"260101000000Z")
    signed = der(0x30, der(0x02, b"\1"), empty, empty, der(0x30, day, day), empty, empty)
    endless = der(0x30, der(0x06, b"\x81" * 700_000))
    pem = ssl.DER_cert_to_PEM_cert(der(0x30, signed, endless, der(0x03, b"\0"))).encode()
    files = files_of(packed(p256.issue(packs.KEY))) | {SIGNER: pem}
    assert checked(tmp_path, resealed(files)).of("INVALID") == [SIGNER]
