"""The transparency log over HTTP, for anyone: C2SP tlog-tiles, proofs, and the keys to check with.

Only published state is served. Each generation has a prefix of its own (`/v1/log/1`), under which
no tile or entry ever changes; `/v1/log` is the newest generation's.
"""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from hashlib import sha256
from typing import Any, TypeAlias

from flask import Response, abort, request
from marshmallow import ValidationError, validates_schema
from marshmallow import fields as plain
from sqlalchemy.orm import Session
from werkzeug.wrappers import Response as AnyResponse

from app.api.http.answers import answer, encode, open_to_all
from app.api.http.auth import public
from app.api.http.routes import Routes
from app.api.http.services import services
from app.core import signing_keys
from app.core.anchoring import quorum
from app.core.log import generations, proofs
from app.ledger.merkle import MAX_SIZE
from app.models import NO_TENANT
from app.schemas import fields
from app.schemas.schema import AnswerSchema, Schema

blp = Routes("log", __name__, description="The public transparency log, and all public keys.")
_FOR_EVER = "public, max-age=31536000, immutable"
_TEXT = "text/plain; charset=utf-8"
_BYTES = "application/octet-stream"
_STRING = {"type": "string"}
_BINARY = {"type": "string", "format": "binary"}
_View: TypeAlias = Callable[..., AnyResponse]
_HEX = re.compile(r"[0-9a-f]{64}")


class Hash(fields.Strict):
    """A SHA-256 in lower-case hex, as its 32 bytes."""

    json_schema: dict[str, Any] = {"type": "string", "pattern": "^[0-9a-f]{64}$"}  # noqa: RUF012  # never changed

    def _deserialize(self, value: Any, *_: Any, **__: Any) -> bytes:
        if not isinstance(value, str) or not _HEX.fullmatch(value):
            raise ValidationError("Send 64 digits of hex in lower case.")
        return bytes.fromhex(value)

    def _serialize(self, value: Any, *_: Any, **__: Any) -> str:
        return bytes(value).hex()


def _path(**options: Any) -> fields.Items:
    return fields.Items(Hash(), max_items=130, **options)


def _size(**options: Any) -> fields.QueryInteger:
    return fields.QueryInteger(0, MAX_SIZE, **options)


class InclusionArgs(Schema):
    """Query parameters of an inclusion proof: the leaf and the tree size."""

    leaf_hash = Hash(description="The leaf's hash; or send `index`.")
    index = _size(description="The leaf's index, from 0; or send `leaf_hash`.")
    size = _size(description="The tree size; absent: the published size.")

    @validates_schema
    def _check_one(self, args: dict[str, Any], **_: Any) -> None:
        if ("leaf_hash" in args) == ("index" in args):
            raise ValidationError("Send either leaf_hash or index.", "index")


class ConsistencyArgs(Schema):
    """Query parameters of a consistency proof: the two tree sizes."""

    since = _size(data_key="from", required=True)
    to = _size(description="The larger tree size; absent: the published size.")


class InclusionSchema(AnswerSchema):
    """Inclusion proof: a leaf's index and its path to the root (RFC 9162 section 2.1.3)."""

    leaf_index = fields.Count(attribute="index")
    leaf_hash = Hash()
    tree_size = fields.Count(attribute="size")
    root = Hash()
    inclusion = _path(attribute="path")


class ConsistencySchema(AnswerSchema):
    """Consistency proof between two tree sizes (RFC 9162 section 2.1.4)."""

    since = fields.Count(data_key="from")
    to = fields.Count()
    consistency = _path()


class LogProofSchema(AnswerSchema):
    """Everything needed to verify a record's commitment offline, except the log's public key."""

    leaf_index = fields.Count()
    leaf_data = fields.Text(100_000, description="Base64.")
    leaf_hash = Hash()
    tree_size = fields.Count(1)
    inclusion = _path()
    checkpoint = fields.Text(100_000, description="The signed note (C2SP tlog-checkpoint).")


class JwksSchema(AnswerSchema):
    """A JSON Web Key Set (RFC 7517)."""

    keys = plain.List(plain.Dict(keys=plain.String()))


@blp.before_request
def _refuse_other_spellings() -> None:
    """Refuse other spellings of a generation, which would be second URLs of the same bytes."""
    generation = (request.view_args or {}).get("generation")
    if generation is not None and not request.path.startswith(f"/v1/log/{generation}/"):
        abort(404)


@blp.after_request
def _open_to_all(response: Response) -> Response:
    return open_to_all(response)


def _of_each_generation(
    name: str, path: str, schema: dict[str, Any], content_type: str, error: int
) -> Callable[[_View], _View]:
    """Serve a path below the prefix of the newest generation, and below that of each."""
    told: dict[str, Any] = {"content_type": content_type, "errors": (error,)}
    newest = blp.serves(f"GET /v1/log/{path}", public, schema, **told)
    each = f"GET /v1/log/<int:generation>/{path}"
    old = blp.serves(each, public, schema, endpoint=f"old_{name}", **told)
    return lambda view: old(newest(view))


@_of_each_generation("checkpoint", "checkpoint", _STRING, "text/plain", 404)
def checkpoint(generation: int | None = None) -> AnyResponse:
    """Read the newest published checkpoint, a signed note

    C2SP tlog-checkpoint, with the cosignatures that witnesses have made so far (C2SP tlog-witness):
    more may follow. Where the newest has no quorum yet, the newest of the last five minutes that
    has one. The first checkpoint is published within a second of the worker's start.
    """
    policy = services().settings.witness_policy
    with _log() as session:
        last = quorum.newest_met(session, policy, proofs.published(session, generation))
        note = quorum.cosigned(session, policy, last)
    return _fresh(note, _TEXT)


@_of_each_generation("key", "key", _STRING, "text/plain", 404)
def key(generation: int | None = None) -> AnyResponse:
    """Read the key that verifies checkpoints, as one line `name+hash+base64`."""
    with _log() as session:
        found = proofs.published(session, generation).generation.verifier_key
    return _fresh(f"{found}\n".encode(), _TEXT)


@_of_each_generation("tile", "tile/<path:tile>", _BINARY, _BYTES, 409)
def tile(tile: str, generation: int | None = None) -> AnyResponse:
    """Read a tile or an entry bundle

    C2SP tlog-tiles: `<L>/<N>`, `<L>/<N>.p/<W>`, and with `entries` in place of the level.
    """
    with _log() as session:
        last = proofs.published(session, generation)
        data = proofs.tile(session, last, f"tile/{tile}")
    if generation is None and last.generation.number != generations.FIRST:
        # An earlier generation had other bytes at this path, and caches may still have those.
        return _fresh(data, _BYTES)
    return Response(data, content_type=_BYTES, headers={"Cache-Control": _FOR_EVER})


@blp.serves(
    "GET /v1/log/proof/inclusion", public, InclusionSchema, args=InclusionArgs, errors=(404, 409)
)
def inclusion(args: dict[str, Any]) -> Response:
    """Read the inclusion proof of a leaf (RFC 9162)."""
    with _log() as session:
        last = proofs.published(session)
        index = args.get("index")
        if index is None:
            index = proofs.index_of(session, last, args["leaf_hash"])
        found = proofs.inclusion(session, last, index, args.get("size", last.checkpoint.size))
    return answer(InclusionSchema.of(found), headers={"Cache-Control": "no-cache"})


@blp.serves(
    "GET /v1/log/proof/consistency",
    public,
    ConsistencySchema,
    args=ConsistencyArgs,
    errors=(404, 409),
)
def consistency(args: dict[str, Any]) -> Response:
    """Read the consistency proof between two tree sizes (RFC 9162)."""
    with _log() as session:
        last = proofs.published(session)
        to = args.get("to", last.checkpoint.size)
        found = proofs.consistency(session, last, args["since"], to)
    body = {"from": args["since"], "to": to, "consistency": [each.hex() for each in found]}
    return answer(body, headers={"Cache-Control": "no-cache"})


@blp.serves("GET /.well-known/jwks.json", public, JwksSchema)
def jwks() -> AnyResponse:
    """Read all public keys that ever signed, with their dates

    `purpose` is `bundle` or `log`. A key stopped signing at `retired_at`. If `revoked_at` is set,
    its signatures count only if others had seen the signed data in the log by then;
    `revocation_reason` says why. `x5c` are a key's certificates, if it has some. A log's key has
    its verifier key in `vkey`, and the log's own prefix in `prefix`.
    """
    with _log() as session:
        return _fresh(
            encode(signing_keys.jwks(session, services().settings.signing_certificates)),
            "application/json",
        )


def _log() -> AbstractContextManager[Session]:
    """Open a transaction that sees the service's own rows, and no tenant's."""
    return services().database.transaction(NO_TENANT)


def _fresh(body: bytes, content_type: str) -> AnyResponse:
    """Answer a body that may change, with an ETag for revalidation."""
    answered = Response(body, content_type=content_type, headers={"Cache-Control": "no-cache"})
    answered.set_etag(sha256(body).hexdigest())
    return answered.make_conditional(request)
