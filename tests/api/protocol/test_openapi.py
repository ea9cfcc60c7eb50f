"""The served OpenAPI document against the service itself: generated requests, each answer checked.

No answer may be a 5xx, have a status that the document does not list for its route, or a body
outside the schema that the document gives for that status.
"""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import schemathesis
from flask import Flask
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.config import SchemathesisConfig
from schemathesis.generation import GenerationMode
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import (
    ignored_auth,
    negative_data_rejection,
    positive_data_acceptance,
)

from app.core import tenants
from app.database import Database
from tests.support.callers.api import Api
from tests.support.callers.matrix import PREFIXES, ROWS, Row, World
from tests.support.secrets import MASTER_KEYS

# That a key is needed is the matrix's matter; and that a cursor must have been given out, or a time
# lie in the future, no schema can say.
NOT_HERE = [ignored_auth, positive_data_acceptance]
# A record that breaks its schema is answered in its own place, beside those that do not.
IN_PLACE = "/v1/records/batch"

# A body that breaks its schema by its length may be over what any route reads.
REJECTED = [400, 401, 403, 404, 406, 413, 415, 422, 428, "5xx"]
CONFIG = {"checks": {"negative_data_rejection": {"expected-statuses": REJECTED}}}


@pytest.fixture(scope="module")
def document(app: Flask) -> BaseSchema:
    """The document as it is served."""
    config = SchemathesisConfig.from_dict(CONFIG)
    return schemathesis.openapi.from_wsgi("/openapi.json", app, config=config)


def new_world(app: Flask, database: Database) -> tuple[World, str]:
    """Return a tenant's world and its root key."""
    _, key = tenants.create(database, MASTER_KEYS, "a world's")
    return World(Api(app.test_client(), key)), key


@pytest.fixture(scope="module")
def kept(app: Flask, database: Database) -> Mapping[bool, tuple[World, str]]:
    """Return a world for requests that read, and one for those that write."""
    return {reads: new_world(app, database) for reads in (True, False)}


def operation(document: BaseSchema, row: Row) -> Any:
    path = row.rule.replace("<rest:", "<").replace("<", "{").replace(">", "}")
    return document[path][row.method]


def point_at_real_things(case: Any, real: dict[str, str]) -> None:
    """Replace generated ids, which name nothing, in the path, the query and the body."""
    for part in (case.path_parameters, case.query, case.body):
        if isinstance(part, dict):
            for name in PREFIXES:
                if name in part:
                    part[name] = real[name]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_every_answer_is_as_documented(
    row: Row,
    document: BaseSchema,
    app: Flask,
    database: Database,
    kept: Mapping[bool, tuple[World, str]],
) -> None:
    # What deletes needs something to delete.
    deletes = row.method == "DELETE"
    world, key = new_world(app, database) if deletes else kept[row.method == "GET"]
    generated = operation(document, row)
    headers = {"Authorization": f"Bearer {key}", "Prefer": "wait=0"}
    excluded = [*NOT_HERE, negative_data_rejection] if row.rule == IN_PLACE else NOT_HERE

    @settings(
        max_examples=5,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],
        database=None,
    )
    @given(
        case=st.one_of(*(generated.as_strategy(generation_mode=mode) for mode in GenerationMode)),
        real=st.booleans(),
    )
    def answers(case: Any, real: bool) -> None:
        if real and case.meta.generation.mode.is_positive:
            point_at_real_things(case, world.ids())
        case.call_and_validate(headers=headers, excluded_checks=excluded)

    answers()


def test_what_generated_requests_seldom_meet_is_documented(api: Callable[..., Api]) -> None:
    paths = api(None).get("/openapi.json").json["paths"]
    assert "404" in paths["/v1/deliveries/replay"]["post"]["responses"]
    rotate = paths["/v1/webhooks/{webhook_id}/rotate-secret"]["post"]
    assert "Idempotency-Key" in [each.get("name") for each in rotate["parameters"]]
    # Each enters its act into the audit chain, which may be broken.
    for method, path in (
        ("patch", "/v1/tenant/settings"),
        ("delete", "/v1/webhooks/{webhook_id}"),
        ("delete", "/v1/records/{record_id}/share-links/{share_link_id}"),
        ("get", "/v1/records/{record_id}/bundle"),
        ("get", "/v1/records/{record_id}/evidence.zip"),
        ("get", "/v1/records/{record_id}/prov.json"),
    ):
        assert "409" in paths[path][method]["responses"], path
