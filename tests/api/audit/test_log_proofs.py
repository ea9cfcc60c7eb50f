"""Proofs of the log over HTTP, checked by a verifier that is not ours."""

import base64

from tlog_scales.reader import TilesReader
from tlog_scales.signing import Vkey

from app.ledger import leaves, merkle, notes
from app.ledger.notes import VerifierKey
from tests.api.audit.log_service import Service, Stranger
from tests.support.callers.making import make_record, make_session, pointers, refused
from tests.support.evidence.logs import add_leaves


def test_a_stranger_finds_every_tile_entry_and_proof_to_be_true(service: Service) -> None:
    hashes = add_leaves(service.world.database, 700)
    service.publish()
    reader = TilesReader(Stranger(service.anyone))
    checkpoint = reader.get_checkpoint()
    checkpoint.verify(Vkey.from_string(service.anyone.get("/v1/log/key").text.strip()))
    assert checkpoint.size == 700
    assert reader.calculate_root_hash() == checkpoint.root_hash
    for index in (0, 255, 256, 511, 512, 699):
        assert merkle.leaf_hash(reader.get_entry(index)) == hashes[index]
        for size in (index + 1, 700):
            ours = service.anyone.get(f"/v1/log/proof/inclusion?index={index}&size={size}").json
            theirs = reader.get_inclusion_proof(index, size)
            assert ours["inclusion"] == [each.hex() for each in theirs.node_hashes]
            theirs.check(hashes[index], bytes.fromhex(ours["root"]))
    for old, new in ((0, 700), (1, 2), (256, 512), (300, 699), (700, 700)):
        ours = service.anyone.get(f"/v1/log/proof/consistency?from={old}&to={new}").json
        if 0 < old < new:
            proof = reader.get_consistency_proof(old, new)
            assert ours["consistency"] == [each.hex() for each in proof.node_hashes]
        merkle.verify_consistency(
            old,
            new,
            [bytes.fromhex(each) for each in ours["consistency"]],
            merkle.root(hashes[:old]),
            merkle.root(hashes[:new]),
        )


def test_a_leaf_is_found_by_its_hash(service: Service) -> None:
    hashes = add_leaves(service.world.database, 5)
    service.publish()
    found = service.anyone.get(f"/v1/log/proof/inclusion?leaf_hash={hashes[3].hex()}").json
    assert (found["leaf_index"], found["tree_size"]) == (3, 5)
    assert found["leaf_hash"] == hashes[3].hex()
    unknown = service.anyone.get(f"/v1/log/proof/inclusion?leaf_hash={'0' * 64}")
    refused(unknown, 404, "not-found")
    waiting = add_leaves(service.world.database, 1)[0]
    pending = service.anyone.get(f"/v1/log/proof/inclusion?leaf_hash={waiting.hex()}")
    refused(pending, 409, "log-pending")
    assert pending.headers["Retry-After"] == "1"


UNPROVABLE = [
    ("inclusion", "/index"),
    (f"inclusion?index=0&leaf_hash={'0' * 64}", "/index"),
    ("inclusion?index=5", "/index"),
    ("inclusion?index=-1", "/index"),
    ("inclusion?index=0&size=6", "/size"),
    ("inclusion?index=0&size=0", "/index"),
    ("inclusion?leaf_hash=abc", "/leaf_hash"),
    (f"inclusion?leaf_hash={'A' * 64}", "/leaf_hash"),
    ("inclusion?index=0&x=1", "/x"),
    ("consistency", "/from"),
    ("consistency?from=3&to=2", "/from"),
    ("consistency?from=6", "/from"),
    ("consistency?from=0&to=6", "/to"),
    ("consistency?from=99999999999999999999", "/from"),
]


def test_what_cannot_be_proved_is_pointed_to(service: Service) -> None:
    add_leaves(service.world.database, 5)
    service.publish()
    for query, pointer in UNPROVABLE:
        assert pointers(service.anyone.get(f"/v1/log/proof/{query}")) == [pointer], query


def test_a_record_is_proved_by_nothing_but_its_proof_and_the_log_s_key(service: Service) -> None:
    session = make_session(service.api)
    made = [make_record(service.api, session["id"]) for _ in range(3)]
    service.publish()
    vkey = VerifierKey.parse(service.anyone.get("/v1/log/key").text.strip())
    for record in made:
        proof = service.api.get(f"/v1/records/{record['id']}/log-proof").json
        checkpoint = notes.read_checkpoint(proof["checkpoint"].encode(), vkey)
        data = base64.b64decode(proof["leaf_data"])
        assert data == leaves.record(bytes.fromhex(record["bundle"]["sha256"]))
        assert merkle.leaf_hash(data).hex() == proof["leaf_hash"]
        assert checkpoint.size == proof["tree_size"]
        merkle.verify_inclusion(
            merkle.leaf_hash(data),
            proof["leaf_index"],
            proof["tree_size"],
            [bytes.fromhex(each) for each in proof["inclusion"]],
            checkpoint.root,
        )
