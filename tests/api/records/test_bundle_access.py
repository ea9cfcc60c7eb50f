"""Who may read what is in a bundle: visibility by caller by export, with what may be kept of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import Engine

from tests.support.callers.api import Answer, Api, ApiOf, FreshTenant
from tests.support.callers.making import (
    NOBODY,
    make_agent,
    make_key,
    make_record,
    make_session,
    pin_of,
    token_to,
)
from tests.support.evidence.packing import Packer
from tests.support.workers.expiring import expire_link, make_due

COLUMNS = ("bundle", "prov.json", "otlp-logs.json", "otlp-traces.json", "log-proof")
PACK = "evidence.zip"
EXPORTS = (*COLUMNS, PACK)
CONTENT = tuple(name for name in EXPORTS if name != "log-proof")

# P: 200 that only its reader may keep ("private, no-store"). O: 200 that anyone may keep and must
# ask about again ("no-cache"). b, p, l, t, g: the exports in their order; a pack is as its bundle.
TABLE = """
                                     | private                 | public
                                     | b   p   l   t   g        | b   p   l   t   g
nothing                              | 401 401 401 401 401      | O   O   401 401 401
a key that is not good               | 401 401 401 401 401      | O   O   401 401 401
a read key                           | P   P   P   P   P        | O   O   P   P   P
an admin key as x-api-key            | P   P   P   P   P        | O   O   P   P   P
a key pinned to it                   | P   P   P   P   P        | O   O   P   P   P
a key pinned elsewhere               | 404 404 404 404 404      | O   O   404 404 404
another tenant's key                 | 404 404 404 404 404      | O   O   404 404 404
a link                               | P   P   P   P   P        | P   P   P   P   P
a link as x-share-token              | P   P   P   P   P        | P   P   P   P   P
a link and a key that is not good    | P   P   P   P   P        | P   P   P   P   P
a link and another tenant's key      | P   P   P   P   P        | P   P   P   P   P
an expired link                      | 404 404 404 404 404      | P   P   404 404 404
a revoked link                       | 404 404 404 404 404      | P   P   404 404 404
another record's link                | 404 404 404 404 404      | P   P   404 404 404
another tenant's link                | 404 404 404 404 404      | P   P   404 404 404
a token that cannot be one           | 404 404 404 404 404      | P   P   404 404 404
a revoked link and a read key        | P   P   P   P   P        | P   P   P   P   P
a revoked link and a bad key         | 401 401 401 401 401      | P   P   401 401 401
"""


@dataclass(frozen=True)
class Row:
    """One caller with what each export answers, by visibility."""

    caller: str
    expected: dict[str, dict[str, str]]

    def __str__(self) -> str:
        return self.caller


def rows() -> Iterator[Row]:
    for line in TABLE.strip("\n").splitlines()[2:]:
        caller, *columns = (part.strip() for part in line.split("|"))
        yield Row(
            caller,
            {
                visibility: _by_export(column.split())
                for visibility, column in zip(("private", "public"), columns, strict=True)
            },
        )


def _by_export(statuses: list[str]) -> dict[str, str]:
    return dict(zip(COLUMNS, statuses, strict=True)) | {PACK: statuses[0]}


ROWS = list(rows())


class Cast:
    """A record, and all who come to read it."""

    def __init__(self, api: ApiOf, stranger: Api, admin_engine: Engine) -> None:
        owner = api()
        session = make_session(owner)
        self.owner = owner
        self.record = make_record(owner, session["id"])
        self._api = api
        keys = self._keys(session, stranger)
        sibling = make_record(owner, session["id"])
        theirs = make_record(stranger, make_session(stranger)["id"])
        link, revoked, expired = (token_to(owner, self.record) for _ in range(3))
        owner.delete(f"{_links(self.record)}/{revoked[1]}")
        expire_link(admin_engine, expired[1])
        bearer = {name: {"Authorization": f"Bearer {key}"} for name, key in keys.items()}
        self.sent: dict[str, tuple[dict[str, str], str | None]] = {
            "nothing": ({}, None),
            "a key that is not good": (bearer["bad"], None),
            "a read key": (bearer["good"], None),
            "an admin key as x-api-key": ({"x-api-key": self._minted("admin")}, None),
            "a key pinned to it": (bearer["pinned"], None),
            "a key pinned elsewhere": (bearer["elsewhere"], None),
            "another tenant's key": (bearer["foreign"], None),
            "a link": ({}, link[0]),
            "a link as x-share-token": ({"x-share-token": link[0]}, None),
            "a link and a key that is not good": (bearer["bad"], link[0]),
            "a link and another tenant's key": (bearer["foreign"], link[0]),
            "an expired link": ({}, expired[0]),
            "a revoked link": ({}, revoked[0]),
            "another record's link": ({}, token_to(owner, sibling)[0]),
            "another tenant's link": ({}, token_to(stranger, theirs)[0]),
            "a token that cannot be one": ({}, "x' OR 1=1\0"),
            "a revoked link and a read key": (bearer["good"], revoked[0]),
            "a revoked link and a bad key": (bearer["bad"], revoked[0]),
        }

    def _keys(self, session: dict[str, Any], stranger: Api) -> dict[str, str]:
        """Return keys that may read the record and keys that may not, by name."""
        pin = pin_of(session)
        return {
            "good": self._minted("read"),
            "pinned": self._minted("read", pin),
            "elsewhere": self._minted("read", pin | {"agent_id": make_agent(self.owner)["id"]}),
            "foreign": make_key(stranger, role="admin")["key"],
            "bad": "svc_" + "0" * 46,
        }

    def ask(self, caller: str, export: str, record_id: str | None = None, **more: str) -> Answer:
        """Ask for an export as this caller; `more` are headers."""
        headers, token = self.sent[caller]
        return self._api(None).get(
            f"/v1/records/{record_id or self.record['id']}/{export}",
            headers=headers | more,
            query_string={} if token is None else {"share_token": token},
        )

    def _minted(self, role: str, pin: dict[str, str] | None = None) -> str:
        return str(make_key(self.owner, role=role, pin=pin)["key"])


@pytest.fixture
def cast(api: ApiOf, other_tenant: FreshTenant, admin_engine: Engine, packer: Packer) -> Cast:
    """Return a record that is in the log and packed, with everyone who comes to read it."""
    made = Cast(api, api(other_tenant.root_key), admin_engine)
    packer.log.run()
    packer.built(made.record)
    return made


def test_each_caller_gets_what_the_table_says(cast: Cast) -> None:
    for visibility in ("private", "public"):
        cast.owner.patch("/v1/tenant/settings", {"bundle_visibility": visibility})
        for row in ROWS:
            got = {export: _said(cast.ask(row.caller, export)) for export in EXPORTS}
            assert got == row.expected[visibility], (visibility, row.caller)
    assert {row.caller for row in ROWS} == cast.sent.keys()


def test_nothing_tells_a_private_record_from_one_that_does_not_exist(cast: Cast) -> None:
    for row in ROWS:
        for export in EXPORTS:
            if row.expected["private"][export] == "P":
                continue
            hidden = _comparable(cast.ask(row.caller, export))
            for record_id in (f"rec_{NOBODY}", "nothing", cast.record["id"].upper()):
                there_is_none = _comparable(cast.ask(row.caller, export, record_id))
                assert there_is_none == hidden, (row.caller, export, record_id)


def test_permission_and_expiry_are_decided_before_any_304(cast: Cast, admin_engine: Engine) -> None:
    etags = {export: cast.ask("a read key", export).headers["ETag"] for export in CONTENT}
    for export, etag in etags.items():
        assert cast.ask("a link", export, **{"If-None-Match": etag}).status_code == 304
        assert cast.ask("nothing", export, **{"If-None-Match": etag}).status_code == 401
        assert cast.ask("a revoked link", export, **{"If-None-Match": "*"}).status_code == 404
    make_due(cast.owner, admin_engine, cast.record)
    for export, etag in etags.items():
        for caller in ("a read key", "a link"):
            gone = cast.ask(caller, export, **{"If-None-Match": etag})
            assert gone.status_code == 410
            assert gone.json["type"].endswith("/problems/bundle-expired")
            assert gone.json["sha256"] == cast.record["bundle"]["sha256"]
            assert gone.json["log_index"] >= 0
        assert cast.ask("nothing", export).status_code == 401
    assert cast.ask("a link", "log-proof").status_code == 200
    cast.owner.patch("/v1/tenant/settings", {"bundle_visibility": "public"})
    assert cast.ask("nothing", "bundle").status_code == 410


def test_what_is_public_is_private_again_at_once(cast: Cast) -> None:
    cast.owner.patch("/v1/tenant/settings", {"bundle_visibility": "public"})
    etag = cast.ask("nothing", "bundle").headers["ETag"]
    cast.owner.patch("/v1/tenant/settings", {"bundle_visibility": "private"})
    assert cast.ask("nothing", "bundle", **{"If-None-Match": etag}).status_code == 401


def _said(answer: Answer) -> str:
    """Return an answer in the table's letters, held to all that a letter stands for."""
    assert answer.headers["Vary"] == "Authorization, x-api-key, x-share-token"
    kept = answer.headers["Cache-Control"]
    if answer.status_code != 200:
        assert kept == "private, no-store"
        return str(answer.status_code)
    assert answer.data
    assert answer.content_type in ("application/json", "application/zip")
    assert answer.headers.get("ETag") or "inclusion" in answer.json
    return {"private, no-store": "P", "no-cache": "O"}[kept]


def _comparable(answer: Answer) -> tuple[int, dict[str, Any], list[str]]:
    said: dict[str, Any] = dict(answer.json)
    assert said.pop("request_id")
    return answer.status_code, said, sorted(answer.headers.keys())


def _links(record: dict[str, Any]) -> str:
    return f"/v1/records/{record['id']}/share-links"
