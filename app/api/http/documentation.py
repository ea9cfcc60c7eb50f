"""How views declare what they take and answer, and the OpenAPI document that comes of it.

Every operation lists all errors that it can answer. So a client can be generated from the
document, and a test can validate real responses against it.
"""

import json
from collections.abc import Callable, Mapping
from functools import wraps
from hashlib import sha256
from typing import Any, TypeAlias, TypeVar, cast
from uuid import UUID

import flask
import flask_smorest
import marshmallow
from apispec import APISpec, BasePlugin
from flask_smorest.utils import prepare_response

from app import ids
from app.api.http import parsing
from app.evidence import pack
from app.lib.crypto import share_tokens
from app.schemas.fields import ExternalId, Items, Strict
from app.schemas.schema import ProblemSchema
from app.settings import VERSION, Settings

MEDIA_TYPE = "application/problem+json"

_View = TypeVar("_View", bound=Callable[..., Any])
_Schema: TypeAlias = type[marshmallow.Schema] | marshmallow.Schema | dict[str, Any]

_TITLE = "record-service"
_INTRODUCTION = """\
A signed, provable record of what AI agents did for people.

**Callers.** Send an API key as `Authorization: Bearer <key>` (or `x-api-key`). A key has one role,
`read` < `write` < `admin`, and may be pinned to one agent and principal. Resources outside its pin,
or of another tenant, are treated as if they did not exist.

**Share links.** A share link opens one record without a key: its page, and its bundle, exports and
proofs with `share_token` in the query or the header `x-share-token`.

**Evidence packs.** `evidence.zip` holds all evidence of a record. `/verify.py` verifies it offline,
with Python alone; the SHA-256 of this release's `verify.py` is `{verifier}`.

**Errors** are problem details (RFC 9457); `type` is the URL of a page that explains the error.
Bodies are strict JSON in UTF-8: unknown fields, duplicate names and wrong types are refused.

**Compression.** Routes that take many things at once take `Content-Encoding: gzip`; the limit of a
body holds for what it unpacks to.

**Lists** are newest first and paginated: follow `next_cursor`, or the `Link` header.

**Idempotency.** Every POST that changes something accepts `Idempotency-Key`: a repeat with the same
key and body gets the first response again, for 24 hours. Bodies are compared as JSON: spacing and
the order of members do not count.
"""

_SECURITY_SCHEMES: dict[str, dict[str, str]] = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "`Authorization: Bearer svc_…`"},
    "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}

# The prefixes of ids by their parameters' names in a route; the last are of the console alone.
_PATH_IDS = {
    "key_id": "key",
    "agent_id": "agt",
    "session_id": "ses",
    "record_id": "rec",
    "share_link_id": "shr",
    "finding_id": "fnd",
    "hold_id": "hld",
    "rule_id": "rul",
    "export_id": "exp",
    "webhook_id": "whk",
    "delivery_id": "dlv",
    "event_id": "evt",
    "job_id": "job",
    "person_id": "usr",
    "sign_in_id": "con",
    "view_id": "viw",
}
# JSON Schemas of path parameters by their name in a route.
_PATH_PARAMETERS: dict[str, dict[str, Any]] = {
    **{name: ids.json_schema(prefix) for name, prefix in _PATH_IDS.items()},
    "tile": {
        "type": "string",
        "pattern": r"^(entries|[0-9]{1,2})/(x[0-9]{3}/){0,6}[0-9]{3}(\.p/[0-9]{1,3})?$",
    },
    "external_id": dict(ExternalId().json_schema),
    "token": {"type": "string", "pattern": f"^[A-Za-z0-9_-]{{{share_tokens.LENGTH}}}$"},
}

# The one changes nothing, and a span is stored once however often it is sent.
_NEEDS_NO_KEY = ("/verify-signature", "/v1/traces")


def _only_documented(decorate: Callable[[_View], _View]) -> Callable[[_View], _View]:
    """Leave what a decorator of flask-smorest says of a view, not the function that it makes."""

    def documented(view: _View) -> _View:
        view._apidoc = decorate(view)._apidoc  # type: ignore[attr-defined]  # noqa: SLF001
        return view

    return documented


def parse_ids(_endpoint: str | None, values: dict[str, Any] | None) -> None:
    """Give views the ids of their paths as UUIDs, and None for what is no id of its kind."""
    if values:
        for name in _PATH_IDS.keys() & values.keys():
            values[name] = ids.parse(_PATH_IDS[name], values[name])


def write_ids(_endpoint: str, values: dict[str, Any]) -> None:
    """Write the ids of a URL that is built from UUIDs."""
    for name in _PATH_IDS.keys() & values.keys():
        if isinstance(values[name], UUID):
            values[name] = ids.text(_PATH_IDS[name], values[name])


class Blueprint(flask_smorest.Blueprint, flask.Blueprint):  # type: ignore[misc]  # as below
    """A flask-smorest blueprint that reads strictly, and whose views return responses."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.url_value_preprocessor(parse_ids)

    @staticmethod
    def doc(**members: Any) -> Callable[[_View], _View]:
        """Document a view; as the two below, without a function around it."""
        return _only_documented(flask_smorest.Blueprint.doc(**members))

    def response(
        self, status: int, schema: _Schema | None = None, **options: Any
    ) -> Callable[[_View], _View]:
        """Document the answer of a view, which is a `Response`."""
        return _only_documented(super().response(status, schema, **options))

    def alt_response(
        self, status: int, response: str | None = None, **options: Any
    ) -> Callable[[_View], _View]:
        """Document another answer."""
        return _only_documented(super().alt_response(status, response, **options))

    def sends_bytes(
        self,
        whole: _Schema,
        part: _Schema,
        headers: Mapping[str, Any],
        content_type: str = "application/json",
        *parameters: Mapping[str, Any],
    ) -> Callable[[_View], _View]:
        """Document a view that answers bytes with an ETag: all of them, or a range."""
        kind = {"content_type": content_type}

        def documented(view: _View) -> _View:
            for each in (
                self.doc(parameters=[*parameters, IF_NONE_MATCH, RANGE, IF_RANGE]),
                self.alt_response(416, "REQUESTED_RANGE_NOT_SATISFIABLE"),
                self.alt_response(412, "PRECONDITION_FAILED"),
                self.alt_response(304, description="The caller has these bytes."),
                self.alt_response(
                    206,
                    schema=part,
                    description="The range that was asked for.",
                    headers={**headers, "Content-Range": _CONTENT_RANGE},
                    **kind,
                ),
                self.response(200, whole, headers=dict(headers), **kind),
            ):
                view = each(view)
            return view

        return documented

    def arguments(
        self, schema: type[marshmallow.Schema], *, location: str = "json", **_: Any
    ) -> Callable[[_View], _View]:
        """Give a view what its schema has loaded of the body, or of the query string.

        A body is required, and documented so, if a field of it is.
        """
        made = schema()
        read = parsing.from_query if location == "query" else parsing.from_body
        document: Callable[[_View], _View] = _only_documented(
            super().arguments(schema, location=location, required=parsing.is_required(made))
        )

        def decorate(view: _View) -> _View:
            @wraps(view)
            def reading(*args: Any, **kwargs: Any) -> Any:
                return view(*args, read(made), **kwargs)

            return document(cast(_View, reading))

        return decorate

    def _prepare_arguments_doc(
        self, doc: dict[str, Any], doc_info: dict[str, Any], **given: Any
    ) -> dict[str, Any]:
        """Document the parameters that `doc` adds beside those of the arguments, not instead."""
        described: dict[str, Any] = super()._prepare_arguments_doc(doc, doc_info, **given)
        added = doc_info.get("manual_doc", {}).pop("parameters", [])
        if added:
            described["parameters"] = [*described.get("parameters", []), *added]
        return described


def header_of(description: str, **schema: Any) -> dict[str, Any]:
    """Return a header of an answer, by its name in `headers`."""
    return {"description": description, "schema": {"type": "string", **schema}}


_CONTENT_RANGE = header_of("The range sent, and the whole size.")


def header(name: str, description: str, **schema: Any) -> dict[str, Any]:
    """Return a request's header that is not required, for `Blueprint.doc`."""
    return {
        "in": "header",
        "name": name,
        "required": False,
        "description": description,
        "schema": {"type": "string", **schema},
    }


IF_NONE_MATCH = header("If-None-Match", "ETags that the caller has; 304 if this is one of them.")
RANGE = header("Range", "One range of bytes, such as `bytes=0-1023`.")
IF_RANGE = header("If-Range", "Send the range only if this is the current ETag; else all bytes.")
PREFER = header(
    "Prefer",
    "`wait=N`: wait up to N seconds (15 at most, 10 without a key), or "
    "`respond-async`: do not wait (RFC 7240).",
)
_CONTENT_ENCODING = header(
    "Content-Encoding",
    "`gzip` for a compressed body: one member (RFC 1952). The limit of the body "
    "holds for what it unpacks to.",
    enum=["gzip", "identity"],
)


_IDEMPOTENCY_KEY = {
    **header(
        "Idempotency-Key",
        "Makes it safe to repeat this request within 24 hours.",
        minLength=1,
        maxLength=255,
        pattern="^[ -~]+$",
    ),
    "example": "5d3a1c9e-finding-1",
}


def takes_gzip(view: _View) -> _View:
    """Let the view's body come with `Content-Encoding: gzip`, and document that."""
    view.takes_gzip = True  # type: ignore[attr-defined]  # read back by parsing
    return Blueprint.doc(parameters=[_CONTENT_ENCODING])(view)


class DocumentedApi(flask_smorest.Api):  # type: ignore[misc]  # flask-smorest ships no types
    """flask-smorest's Api, with problem details as its errors and no default response."""

    ERROR_SCHEMA = ProblemSchema
    # A catch-all would hide an undocumented response.
    DEFAULT_ERROR_RESPONSE_NAME = None

    def _register_error_handlers(self) -> None:
        """Leave errors to app/api/http/problems.py."""

    def _register_responses(self) -> None:
        """Register one response component a status, named after its HTTPStatus."""
        for name, words in REFUSALS.values():
            response: dict[str, Any] = {"description": words, "schema": self.ERROR_SCHEMA}
            prepare_response(response, self.spec, MEDIA_TYPE)
            self.spec.components.response(name, response, lazy=True)


# The name of each response component, after its HTTPStatus, and its description.
REFUSALS = {
    400: ("BAD_REQUEST", "The body is not JSON in UTF-8, or two credentials were sent."),
    401: ("UNAUTHORIZED", "No key, or one that is unknown, revoked or expired."),
    403: ("FORBIDDEN", "The key's role is too low, or the key is pinned."),
    404: ("NOT_FOUND", "Not found, or not visible to this key."),
    409: ("CONFLICT", "The current state does not allow it."),
    410: ("GONE", "Older than the retention period."),
    412: ("PRECONDITION_FAILED", "If-Match names another version."),
    413: ("REQUEST_ENTITY_TOO_LARGE", "The body is larger than 1 MiB (for a record, 8 MiB)."),
    415: ("UNSUPPORTED_MEDIA_TYPE", "The body is not declared as JSON, or compressed."),
    416: ("REQUESTED_RANGE_NOT_SATISFIABLE", "The range begins beyond the end."),
    422: ("UNPROCESSABLE_ENTITY", "Fields were refused; `errors` lists each."),
    429: ("TOO_MANY_REQUESTS", "Too many requests; retry after `Retry-After` seconds."),
    503: (
        "SERVICE_UNAVAILABLE",
        "The database does not answer, or too much is asked at once; repeat the request.",
    ),
}


class Refusals(BasePlugin):
    """Adds to each operation the error responses that its declaration implies."""

    def path_helper(  # type: ignore[override]  # apispec passes keywords it does not name
        self, *, parameters: list[dict[str, Any]], **_: Any
    ) -> None:
        """Add the JSON Schemas of path parameters."""
        for parameter in parameters:
            if parameter.get("name") in _PATH_PARAMETERS:
                parameter["schema"] = _PATH_PARAMETERS[parameter["name"]]

    def operation_helper(  # type: ignore[override]  # as above
        self, *, path: str, operations: dict[str, dict[str, Any]], **given: Any
    ) -> None:
        """Add the view's name, error responses, and `Idempotency-Key` to POSTs that change."""
        for method, operation in operations.items():
            if "rule" in given:
                operation["operationId"] = given["rule"].endpoint
            responses = operation.setdefault("responses", {})
            if method == "post" and _is_repeatable(path, operation):
                operation.setdefault("parameters", []).append(_IDEMPOTENCY_KEY)
            for status in _refusals(path, method, operation):
                responses.setdefault(status, REFUSALS[status][0])


def open_spec(app_settings: Settings) -> dict[str, Any]:
    """Return the constructor's arguments for the document."""
    verifier = sha256(pack.verifier_source()).hexdigest()
    introduction = _INTRODUCTION.replace("{verifier}", verifier)
    return {
        "title": _TITLE,
        "version": VERSION,
        "openapi_version": "3.1.0",
        "extra_plugins": [Refusals()],
        "info": {"description": introduction, "license": {"name": "Apache-2.0"}},
        "servers": [{"url": app_settings.base_url}],
        "security": [{name: []} for name in _SECURITY_SCHEMES],
    }


def complete(api: DocumentedApi) -> None:
    """Register our fields and the security schemes; call it before any blueprint."""
    api.ma_plugin.converter.add_attribute_function(_strict_field)
    spec: APISpec = api.spec
    for name, scheme in _SECURITY_SCHEMES.items():
        spec.components.security_scheme(name, scheme)


def write(api: DocumentedApi) -> bytes:
    """Return the finished document as JSON; call it after the last blueprint."""
    # A default may be a set, which has no order of its own.
    return json.dumps(api.spec.to_dict(), ensure_ascii=False, default=sorted).encode()


def _strict_field(_: Any, field: marshmallow.fields.Field[Any], **__: Any) -> dict[str, Any]:
    if isinstance(field, Items):
        return {"minItems": field.min_items, "maxItems": field.max_items}
    return field.described() if isinstance(field, Strict) else {}


def _is_repeatable(path: str, operation: Mapping[str, Any]) -> bool:
    """Return whether a POST takes an Idempotency-Key; `test_idempotency` compares all with it."""
    public = operation.get("security") == []
    return not public and not path.endswith(_NEEDS_NO_KEY)


def _refusals(path: str, method: str, operation: dict[str, Any]) -> list[int]:
    public = operation.get("security") == []
    found = [429, 503] if public else [400, 401, 403, 422, 429, 503]
    if "{" in path:
        found.append(404)
    if not public and method not in ("get", "head"):
        found += [409, 413, 415]
    return found
