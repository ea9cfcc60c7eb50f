"""Revoked is revoked: while a request waits for a pack, and between the parts of one."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine

from app.core.packs import store
from app.lib.crypto import api_keys
from tests.api.records.packs.test_exports import exports
from tests.support.callers.api import Answer
from tests.support.callers.making import refused, revoke, token_to
from tests.support.database.databases import execute
from tests.support.evidence.packing import Packer, parts_of, path_of, record_id
from tests.support.faults import until
from tests.support.workers.expiring import expire_link

EXPIRE_KEY = "UPDATE api_keys SET expires_at = clock_timestamp() WHERE digest = :digest"
SUSPEND = "UPDATE tenants SET suspended_at = clock_timestamp() WHERE id = :id"
MAKE_OLD = "UPDATE records SET created_at = created_at - interval '2 days' WHERE id = :id"
Ends = Callable[[Packer, Engine, dict[str, str], str, str], None]


def ends_key(packer: Packer, owner: Engine, record: dict[str, str], key: str, link: str) -> None:
    revoke(packer.api, key)


def expires_key(packer: Packer, owner: Engine, record: dict[str, str], key: str, link: str) -> None:
    execute(owner, EXPIRE_KEY, digest=api_keys.digest(key))


def ends_link(packer: Packer, owner: Engine, record: dict[str, str], key: str, link: str) -> None:
    path = f"/v1/records/{record['id']}/share-links/{link}"
    assert packer.api().delete(path).status_code == 204


def expires_link(
    packer: Packer, owner: Engine, record: dict[str, str], key: str, link: str
) -> None:
    expire_link(owner, link)


def suspends(packer: Packer, owner: Engine, record: dict[str, str], key: str, link: str) -> None:
    execute(owner, SUSPEND, id=packer.tenant.id)


def makes_private(
    packer: Packer, owner: Engine, record: dict[str, str], key: str, link: str
) -> None:
    packer.api().patch("/v1/tenant/settings", {"bundle_visibility": "private"})


def expires_record(
    packer: Packer, owner: Engine, record: dict[str, str], key: str, link: str
) -> None:
    packer.api().patch("/v1/tenant/settings", {"bundle_retention_days": 1})
    execute(owner, MAKE_OLD, id=record_id(record))


def waited(
    packer: Packer, record: dict[str, str], headers: dict[str, str], meanwhile: Callable[[], None]
) -> Answer:
    """Return the answer of a request that waited for its pack, which is built after `meanwhile`."""

    def ask() -> Answer:
        return packer.api(None).get(path_of(record), headers={"Prefer": "wait=10"} | headers)

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask)
        until(lambda: bool(packer.jobs()))
        meanwhile()
        packer.work()
        return asked.result()


@pytest.mark.parametrize(
    ("by", "meanwhile", "status", "slug"),
    [
        ("key", ends_key, 401, "unauthenticated"),
        ("key", expires_key, 401, "unauthenticated"),
        ("key", expires_record, 410, "bundle-expired"),
        ("link", ends_link, 404, "not-found"),
        ("link", expires_link, 404, "not-found"),
        ("link", suspends, 404, "not-found"),
        ("nothing", makes_private, 401, "unauthenticated"),
        ("nothing", suspends, 401, "unauthenticated"),
    ],
)
def test_who_may_not_read_it_any_more_when_it_is_built_gets_nothing(
    packer: Packer,
    mint: Callable[..., str],
    admin_engine: Engine,
    by: str,
    meanwhile: Ends,
    status: int,
    slug: str,
) -> None:
    record = packer.record()
    token, link = token_to(packer.api(), record)
    key = mint("read")
    headers = {"key": {"Authorization": f"Bearer {key}"}, "link": {"x-share-token": token}}
    if by == "nothing":
        packer.api().patch("/v1/tenant/settings", {"bundle_visibility": "public"})
    answer = waited(
        packer,
        record,
        headers.get(by, {}),
        lambda: meanwhile(packer, admin_engine, record, key, link),
    )
    refused(answer, status, slug)
    execute(
        admin_engine, "UPDATE tenants SET suspended_at = NULL WHERE id = :id", id=packer.tenant.id
    )
    assert exports(packer) == [], "an export that was refused is none"


def test_a_key_beside_a_record_that_was_public_is_admitted_by_itself(
    packer: Packer, mint: Callable[..., str], admin_engine: Engine
) -> None:
    packer.api().patch("/v1/tenant/settings", {"bundle_visibility": "public"})
    record, key = packer.record(), mint("read")
    answer = waited(
        packer,
        record,
        {"Authorization": f"Bearer {key}"},
        lambda: makes_private(packer, admin_engine, record, key, ""),
    )
    assert answer.status_code == 200
    key_id = packer.api(key).get("/v1/keys/self").json["id"]
    assert exports(packer) == [("key", key_id)]


def test_a_key_that_was_revoked_is_not_named_by_the_export_of_a_public_record(
    packer: Packer, mint: Callable[..., str]
) -> None:
    packer.api().patch("/v1/tenant/settings", {"bundle_visibility": "public"})
    record, key = packer.record(), mint("read")
    sent = {"Authorization": f"Bearer {key}"}
    answer = waited(packer, record, sent, lambda: revoke(packer.api, key))
    assert answer.status_code == 200
    assert exports(packer) == [("system", "record-service")]


def test_a_link_that_waited_was_opened_once(packer: Packer, admin_engine: Engine) -> None:
    record = packer.record()
    token, _ = token_to(packer.api(), record)
    answer = waited(packer, record, {"x-share-token": token}, lambda: None)
    assert answer.status_code == 200
    (listed,) = packer.api().get(f"/v1/records/{record['id']}/share-links").json["data"]
    assert listed["opened"] == 1


def test_a_download_ends_short_once_its_key_is_revoked(
    packer: Packer,
    mint: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(store, "PART_BYTES", 20_000)
    record, key = packer.record(), mint("read")
    packer.built(record)
    parts = parts_of(packer.api(key).get(path_of(record), buffered=False))
    next(parts)
    revoke(packer.api, key)
    capsys.readouterr()
    assert list(parts) == []
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["event"] for line in said] == ["reader_refused"]
    assert key not in str(said)
