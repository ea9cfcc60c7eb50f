"""The public log over HTTP: tiles, checkpoints, keys and successors."""

import base64
from dataclasses import replace

from sqlalchemy import Engine, text
from tlog_scales.reader import TilesReader
from tlog_scales.signing import Vkey
from tlog_scales.tlog import Checkpoint

from app.core.log import succession
from app.ledger import leaves, merkle
from app.ledger.notes import Note, VerifierKey
from app.ledger.policy import Policy
from app.lib.crypto.signing import PublicKey
from app.settings import Settings
from tests.api.audit.log_service import Service, Stranger
from tests.support.callers.api import serving
from tests.support.callers.making import make_record, make_session, pointers, refused
from tests.support.evidence.anchoring import put_line
from tests.support.evidence.logs import add_leaves
from tests.support.evidence.witnesses import Witness

FOR_EVER = "public, max-age=31536000, immutable"


def test_a_log_that_has_not_begun_is_not_there(service: Service) -> None:
    for path in ("checkpoint", "key", "tile/0/000", "proof/inclusion?index=0", "1/checkpoint"):
        refused(service.anyone.get(f"/v1/log/{path}"), 404, "not-found")
    parts = service.anyone.readyz().json["parts"]
    assert parts["log"] == "up"
    assert parts["log_head"].startswith("unset: a rollback")


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
    assert len(entries) == 2 * (2 + len(leaves.record(bytes(32))))


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


def test_other_paths_of_tiles_and_other_spellings_of_a_generation_do_not_exist(
    service: Service,
) -> None:
    add_leaves(service.world.database, 300)
    service.publish()
    generations = [f"{spelling}/checkpoint" for spelling in ("01", "%D9%A1", "+1", "1.0")]
    for path in [*(f"tile/{tile}" for tile in NO_TILES), *generations]:
        refused(service.anyone.get(f"/v1/log/{path}"), 404, "not-found")


def test_nothing_beyond_the_published_size_is_served(service: Service) -> None:
    session = make_session(service.api)
    add_leaves(service.world.database, 3)
    service.publish()
    before = service.anyone.get("/v1/log/checkpoint").data
    record = make_record(service.api, session["id"])
    assert service.world.prepare() is not None
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


def test_a_monitor_finds_the_cosignatures_that_there_are(
    service: Service, log_settings: Settings, log_owner: Engine
) -> None:
    record = make_record(service.api, make_session(service.api)["id"])
    service.publish()
    ours, stranger = Witness("one.test"), Witness("two.test")
    policy = Policy.parse(f"witness w {ours.vkey}\nquorum w\n".encode())
    path = f"/v1/records/{record['id']}/log-proof"
    with serving(replace(log_settings, witness_policy=policy)) as api:
        bare = api().get("/v1/log/checkpoint")
        assert len(Note.parse(bare.data).signatures) == 1
        for witness in (ours, stranger):
            put_line(log_owner, witness)
        found = api().get("/v1/log/checkpoint")
        assert found.data.startswith(bare.data), "more lines, and nothing else"
        assert found.headers["ETag"] != bare.headers["ETag"]
        # As others read it: C2SP's Ed25519 cosignatures, each by its vkey.
        checkpoint = Checkpoint.from_text(found.text)
        checkpoint.verify(Vkey.from_string(api().get("/v1/log/key").text.strip()))
        for witness in (ours, stranger):
            checkpoint.verify(Vkey.from_string(str(witness.vkey)))
        note = Note.parse(found.data)
        assert policy.is_met_by(each.key for each in note.signed_by([ours.vkey])), "quorum 1"
        assert service.api.get(path).json["checkpoint"] == found.text
        assert api().get("/v1/log/1/checkpoint").data == found.data
        # A line that would spoil the whole note is left out: by one of ours, or in the log's name.
        log_key = VerifierKey.parse(api().get("/v1/log/key").text.strip())
        spoiled = {"w": ours.cosign("another text\n"), "l": ours.cosign(note.text)}
        spoiled["l"] = replace(spoiled["l"], name=log_key.name, key_hash=log_key.key_hash)
        for name, line in spoiled.items():
            put_line(log_owner, ours, line, name)
        assert api().get("/v1/log/checkpoint").data == found.data
        # A busy log publishes on: the newest with a quorum is shown for some minutes.
        add_leaves(service.world.database, 1)
        service.publish()
        assert Note.parse(api().get("/v1/log/checkpoint").data).text == note.text
        with log_owner.begin() as connection:
            aged = "UPDATE checkpoints SET published_at = published_at - interval '6 minutes'"
            connection.execute(text(aged))
        newest = Note.parse(api().get("/v1/log/checkpoint").data)
        assert len(newest.signatures) == 1
        assert newest.text != note.text


def test_pages_of_any_origin_may_read_the_log_and_its_keys(service: Service) -> None:
    add_leaves(service.world.database, 300)
    service.publish()
    origin = {"Origin": "https://monitor.example"}
    for path, status in (
        ("/v1/log/checkpoint", 200),
        ("/v1/log/1/checkpoint", 200),
        ("/v1/log/key", 200),
        ("/v1/log/tile/0/000", 200),
        ("/v1/log/tile/entries/001.p/44", 200),
        ("/v1/log/tile/9/000", 404),
        ("/v1/log/proof/inclusion?index=1", 200),
        ("/v1/log/proof/inclusion?index=999", 422),
        ("/v1/log/proof/consistency?from=1", 200),
        ("/.well-known/jwks.json", 200),
        ("/verify.py", 200),
    ):
        answer = service.anyone.get(path, headers=origin)
        assert answer.status_code == status, path
        assert answer.headers.getlist("Access-Control-Allow-Origin") == ["*"]
        assert "Cross-Origin-Resource-Policy" not in answer.headers
        assert "Access-Control-Allow-Credentials" not in answer.headers
    for path in ("/v1/agents", "/v1/audit", "/healthz"):
        answer = service.api.get(path, headers=origin)
        assert "Access-Control-Allow-Origin" not in answer.headers
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"


def test_the_keys_are_published_with_their_dates(service: Service) -> None:
    assert service.anyone.get("/.well-known/jwks.json").json == {"keys": []}
    record = make_record(service.api, make_session(service.api)["id"])
    service.publish()
    answer = service.anyone.get("/.well-known/jwks.json")
    keys = {key["purpose"]: key for key in answer.json["keys"]}
    assert keys["bundle"]["kid"] == record["bundle"]["key_id"]
    assert keys["bundle"]["retired_at"] is None
    assert keys["bundle"]["created_at"] <= record["created_at"], "the first record is no older"
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
    succession.succeed(service.world.sequencer(), service.world.master_keys, force=True)
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
