"""The public log over HTTP, read by a verifier that is not ours, and the proofs of records."""

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import Engine, text
from tlog_scales.reader import TilesReader
from tlog_scales.signing import Vkey

from app.api.http.services import EXTENSION
from app.core import tenants
from app.core.log.recovery import succession
from app.core.log.sequencer import Sequencer
from app.ledger import checkpoints, leaves, merkle
from app.ledger.notes import VerifierKey
from app.lib.crypto.signing import PublicKey
from app.settings import Settings
from app.web import create_app
from tests.support.callers.api import Api
from tests.support.callers.making import NOBODY, make_record, make_session, pointers, refused
from tests.support.evidence.logs import FLIP, World, add_leaves, new_world
from tests.support.secrets import MASTER_KEYS

FOR_EVER = "public, max-age=31536000, immutable"


@dataclass
class Service:
    """A service of a test's own, with a log that nobody else writes to."""

    world: World
    api: Api
    anyone: Api

    def publish(self) -> None:
        """Integrate what waits."""
        self.world.keeper().run()


@pytest.fixture(scope="module")
def log_app(log_settings: Settings) -> Iterator[Flask]:
    """Return the web application over the database of these tests."""
    created = create_app(log_settings)
    yield created
    created.extensions[EXTENSION].close()


@pytest.fixture
def service(
    log_app: Flask, log_settings: Settings, log_owner: Engine, tmp_path: Path
) -> Iterator[Service]:
    """Return a service whose log has not begun."""
    with new_world(log_settings, log_owner, tmp_path) as world:
        _, key = tenants.create(world.database, MASTER_KEYS, "the test's tenant")
        yield Service(world, Api(log_app.test_client(), key), Api(log_app.test_client(), None))


class Stranger:
    """Reads the log as `tlog-scales` would over the network."""

    def __init__(self, api: Api, prefix: str = "/v1/log") -> None:
        self._api = api
        self._prefix = prefix

    def get(self, *path: str) -> bytes | None:
        answer = self._api.get("/".join((self._prefix, *path)))
        return answer.data if answer.status_code == 200 else None


def test_a_log_that_has_not_begun_is_not_there(service: Service) -> None:
    for path in ("checkpoint", "key", "tile/0/000", "proof/inclusion?index=0", "1/checkpoint"):
        refused(service.anyone.get(f"/v1/log/{path}"), 404, "not-found")
    assert service.anyone.readyz().json["parts"]["log"] == "up"


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


def test_tiles_are_cut_from_the_widest_and_cached_for_ever(service: Service) -> None:
    hashes = add_leaves(service.world.database, 300)
    service.publish()
    full = service.anyone.get("/v1/log/tile/0/000")
    assert full.data == b"".join(hashes[:256])
    assert full.headers["Cache-Control"] == FOR_EVER
    assert full.content_type == "application/octet-stream"
    for width in (1, 43, 44):
        partial = service.anyone.get(f"/v1/log/tile/0/001.p/{width}")
        assert partial.data == b"".join(hashes[256 : 256 + width])
    assert service.anyone.get("/v1/log/tile/0/000.p/7").data == b"".join(hashes[:7])
    assert service.anyone.get("/v1/log/tile/1/000.p/1").data == merkle.root(hashes[:256])
    entries = service.anyone.get("/v1/log/tile/entries/001.p/2").data
    assert len(entries) == 2 * (2 + len(leaves.Record(bytes(32)).data))


NO_TILES = [
    "0/001",
    "0/001.p/45",
    "0/002.p/1",
    "1/000",
    "2/000.p/1",
    "entries/001",
    "entries/001.p/45",
    "0/1",
    "0/0000",
    "00/000",
    "0/x000/000",
    "0/000.p/0",
    "0/000.p/256",
    "0/000.p/07",
    "0/000/",
    "-1/000",
    "64/000",
    "0/x999/x999/x999/x999/x999/x999/999",
    "entries/000.p/",
    "../checkpoint",
    "0/%D9%A0%D9%A0%D9%A0",
    "0/000%00",
]


def test_other_paths_of_tiles_do_not_exist(service: Service) -> None:
    add_leaves(service.world.database, 300)
    service.publish()
    for path in NO_TILES:
        refused(service.anyone.get(f"/v1/log/tile/{path}"), 404, "not-found")


def test_nothing_beyond_the_published_size_is_served(service: Service) -> None:
    session = make_session(service.api)
    add_leaves(service.world.database, 3)
    service.publish()
    before = service.anyone.get("/v1/log/checkpoint").data
    record = make_record(service.api, session["id"])
    assert service.world.keeper()._prepare(100) is not None
    assert service.anyone.get("/v1/log/checkpoint").data == before
    refused(service.anyone.get("/v1/log/tile/0/000.p/4"), 404, "not-found")
    assert pointers(service.anyone.get("/v1/log/proof/inclusion?index=3")) == ["/index"]
    path = f"/v1/records/{record['id']}"
    assert service.api.get(path).json["log"] == {"status": "pending", "index": None}
    refused(service.api.get(f"{path}/log-proof"), 409, "log-pending")
    service.publish()
    assert service.api.get(path).json["log"] == {"status": "integrated", "index": 3}
    assert service.api.get(f"{path}/log-proof").json["leaf_index"] == 3
    assert len(service.anyone.get("/v1/log/tile/0/000.p/4").data) == 4 * 32


def test_a_checkpoint_is_asked_for_by_its_etag(service: Service) -> None:
    service.publish()
    first = service.anyone.get("/v1/log/checkpoint")
    assert first.headers["Cache-Control"] == "no-cache"
    assert first.content_type == "text/plain; charset=utf-8"
    tag = {"If-None-Match": first.headers["ETag"]}
    assert service.anyone.get("/v1/log/checkpoint", headers=tag).status_code == 304
    add_leaves(service.world.database, 1)
    service.publish()
    assert service.anyone.get("/v1/log/checkpoint", headers=tag).status_code == 200


def test_a_record_is_proved_by_nothing_but_its_proof_and_the_log_s_key(service: Service) -> None:
    session = make_session(service.api)
    made = [make_record(service.api, session["id"]) for _ in range(3)]
    service.publish()
    vkey = VerifierKey.parse(service.anyone.get("/v1/log/key").text.strip())
    for record in made:
        proof = service.api.get(f"/v1/records/{record['id']}/log-proof").json
        checkpoint = checkpoints.read(proof["checkpoint"].encode(), vkey)
        data = base64.b64decode(proof["leaf_data"])
        assert leaves.parse(data) == leaves.Record(bytes.fromhex(record["bundle"]["sha256"]))
        assert merkle.leaf_hash(data).hex() == proof["leaf_hash"]
        assert checkpoint.size == proof["tree_size"]
        merkle.verify_inclusion(
            merkle.leaf_hash(data),
            proof["leaf_index"],
            proof["tree_size"],
            [bytes.fromhex(each) for each in proof["inclusion"]],
            checkpoint.root,
        )


def test_the_proof_of_no_record_is_not_found(service: Service) -> None:
    refused(service.api.get(f"/v1/records/rec_{NOBODY}/log-proof"), 404, "not-found")


def test_a_damaged_tile_proves_nothing(service: Service) -> None:
    add_leaves(service.world.database, 300)
    service.publish()
    with service.world.database.across_tenants() as session:
        session.execute(text(f"{FLIP} WHERE level = 0 AND number = 0"))
    refused(service.anyone.get("/v1/log/proof/inclusion?index=0"), 409, "log-damaged")


def test_the_keys_are_published_with_their_dates(service: Service) -> None:
    assert service.anyone.get("/.well-known/jwks.json").json == {"keys": []}
    record = make_record(service.api, make_session(service.api)["id"])
    service.publish()
    answer = service.anyone.get("/.well-known/jwks.json")
    keys = {key["purpose"]: key for key in answer.json["keys"]}
    assert keys["bundle"]["kid"] == record["bundle"]["key_id"]
    assert keys["bundle"]["retired_at"] is None
    assert keys["log"]["vkey"] == service.anyone.get("/v1/log/key").text.strip()
    assert keys["log"]["prefix"] == "/v1/log/1"
    for key in keys.values():
        x = key["x"] + "=" * (-len(key["x"]) % 4)
        assert PublicKey(base64.urlsafe_b64decode(x)).id == key["kid"]
        assert (key["kty"], key["crv"], key["use"], key["alg"]) == (
            "OKP",
            "Ed25519",
            "sig",
            "EdDSA",
        )


def test_a_successor_is_served_beside_its_predecessor(service: Service) -> None:
    hashes = add_leaves(service.world.database, 300)
    service.publish()
    before = {path: service.anyone.get(f"/v1/log/{path}").data for path in ("checkpoint", "key")}
    succession.succeed(service.world.keeper(), service.world.master_keys, force=True)
    for path, data in before.items():
        assert service.anyone.get(f"/v1/log/{path}").data != data
        assert service.anyone.get(f"/v1/log/1/{path}").data == data
        now = service.anyone.get(f"/v1/log/{path}").data
        assert service.anyone.get(f"/v1/log/2/{path}").data == now
    for prefix in ("/v1/log", "/v1/log/1", "/v1/log/2"):
        reader = TilesReader(Stranger(service.anyone, prefix))
        assert reader.get_checkpoint().root_hash == reader.calculate_root_hash()
    old, new, anew = (
        service.anyone.get(f"/v1/log{prefix}/tile/0/000") for prefix in ("/1", "/2", "")
    )
    assert old.data == b"".join(hashes[:256])
    assert new.data == anew.data != old.data
    assert [each.headers["Cache-Control"] for each in (old, new, anew)] == [
        FOR_EVER,
        FOR_EVER,
        "no-cache",
    ]
    retired = [
        key["retired_at"] is not None
        for key in service.anyone.get("/.well-known/jwks.json").json["keys"]
    ]
    assert retired == [True, False]


def test_readyz_says_what_halted_the_log_and_the_checkpoint_is_still_served(
    service: Service,
) -> None:
    service.publish()
    checkpoint = service.anyone.get("/v1/log/checkpoint").data
    with service.world.database.across_tenants() as session:
        session.connection().exec_driver_sql(
            "UPDATE log_generations SET trouble = 'log-rolled-back'"
        )
    answer: Any = service.anyone.readyz()
    assert answer.status_code == 200
    assert "log" in answer.json["degraded"]
    assert answer.json["parts"]["log"] == "log-rolled-back"
    assert answer.json["parts"]["log_head"].startswith("unset: a rollback")
    assert service.anyone.get("/v1/log/checkpoint").data == checkpoint


@pytest.mark.parametrize("spelling", ["01", "%D9%A1", "+1", "1.0"])
def test_a_generation_has_one_spelling(client: FlaskClient, log: Sequencer, spelling: str) -> None:
    log.run()
    assert client.get("/v1/log/1/checkpoint").status_code == 200
    assert client.get(f"/v1/log/{spelling}/checkpoint").status_code == 404
