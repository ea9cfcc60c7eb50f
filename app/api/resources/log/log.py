"""The transparency log over HTTP, for anyone: C2SP tlog-tiles, proofs, and the keys to check with.

Only published state is served. Each generation has a prefix of its own (`/v1/log/1`), under which
no tile or entry ever changes; `/v1/log` is the newest generation's.
"""

from contextlib import AbstractContextManager
from hashlib import sha256
from typing import Any

from flask import Response, abort, request
from sqlalchemy.orm import Session
from werkzeug.wrappers import Response as AnyResponse

from app.api.http.access.auth import public
from app.api.http.requests.parsing import Blueprint
from app.api.http.responses.answers import answer, encode
from app.api.http.services import services
from app.api.resources.log.log_schemas import (
    ConsistencyArgs,
    ConsistencySchema,
    InclusionArgs,
    InclusionSchema,
    JwksSchema,
)
from app.core.anchoring import quorum
from app.core.log import generations, proofs, reading
from app.models import NO_TENANT

blp = Blueprint("log", __name__, description="The public transparency log, and all public keys.")

_FOR_EVER = "public, max-age=31536000, immutable"
_TEXT = "text/plain; charset=utf-8"
_BYTES = "application/octet-stream"
_STRING = {"type": "string"}
_BINARY = {"type": "string", "format": "binary"}


@blp.before_request
def _refuse_other_spellings() -> None:
    """Refuse other spellings of a generation, which would be second URLs of the same bytes."""
    generation = (request.view_args or {}).get("generation")
    if generation is not None and not request.path.startswith(f"/v1/log/{generation}/"):
        abort(404)


@blp.after_request
def _open_to_all(response: Response) -> Response:
    """Let pages of any origin read it: it is public, and no cookie or key changes an answer."""
    response.headers["Access-Control-Allow-Origin"] = "*"
    response.headers["Access-Control-Expose-Headers"] = "ETag, Retry-After"
    response.headers["Cross-Origin-Resource-Policy"] = "cross-origin"
    return response


@blp.route("/v1/log/checkpoint", methods=["GET"])
@blp.route("/v1/log/<int:generation>/checkpoint", methods=["GET"], endpoint="old_checkpoint")
@public
@blp.response(200, _STRING, content_type="text/plain")
@blp.alt_response(404, "NOT_FOUND")
def checkpoint(generation: int | None = None) -> AnyResponse:
    """Read the newest published checkpoint, a signed note

    C2SP tlog-checkpoint, with the cosignatures that witnesses have made so far (C2SP tlog-witness):
    more may follow while it is the newest. The first one is published within a second of the
    worker's start.
    """
    with _log() as session:
        last = proofs.published(session, generation)
        note = quorum.cosigned(session, services().settings.witness_policy, last)
    return _fresh(note, _TEXT)


@blp.route("/v1/log/key", methods=["GET"])
@blp.route("/v1/log/<int:generation>/key", methods=["GET"], endpoint="old_key")
@public
@blp.response(200, _STRING, content_type="text/plain")
@blp.alt_response(404, "NOT_FOUND")
def key(generation: int | None = None) -> AnyResponse:
    """Read the key that verifies checkpoints, as one line `name+hash+base64`."""
    with _log() as session:
        found = proofs.published(session, generation).generation.verifier_key
    return _fresh(f"{found}\n".encode(), _TEXT)


@blp.route("/v1/log/tile/<path:tile>", methods=["GET"])
@blp.route("/v1/log/<int:generation>/tile/<path:tile>", methods=["GET"], endpoint="old_tile")
@public
@blp.response(200, _BINARY, content_type=_BYTES)
@blp.alt_response(404, "NOT_FOUND")
@blp.alt_response(409, "CONFLICT")
def tile(tile: str, generation: int | None = None) -> AnyResponse:
    """Read a tile or an entry bundle

    C2SP tlog-tiles: `<L>/<N>`, `<L>/<N>.p/<W>`, and with `entries` in place of the level.
    """
    with _log() as session:
        last = proofs.published(session, generation)
        data = reading.tile(session, last, f"tile/{tile}")
    if generation is None and last.generation.number != generations.FIRST:
        # An earlier generation had other bytes at this path, and caches may still have those.
        return _fresh(data, _BYTES)
    return Response(data, content_type=_BYTES, headers={"Cache-Control": _FOR_EVER})


@blp.route("/v1/log/proof/inclusion", methods=["GET"])
@public
@blp.arguments(InclusionArgs, location="query")
@blp.response(200, InclusionSchema)
@blp.alt_response(404, "NOT_FOUND")
@blp.alt_response(409, "CONFLICT")
@blp.alt_response(422, "UNPROCESSABLE_ENTITY")
def inclusion(args: dict[str, Any]) -> Response:
    """Read the inclusion proof of a leaf (RFC 9162)."""
    with _log() as session:
        last = proofs.published(session)
        index = args.get("index")
        if index is None:
            index = proofs.index_of(session, last, args["leaf_hash"])
        found = proofs.inclusion(session, last, index, args.get("size", last.checkpoint.size))
    body = {
        "leaf_index": found.index,
        "leaf_hash": found.leaf_hash.hex(),
        "tree_size": found.size,
        "root": found.root.hex(),
        "inclusion": [each.hex() for each in found.path],
    }
    return answer(body, headers={"Cache-Control": "no-cache"})


@blp.route("/v1/log/proof/consistency", methods=["GET"])
@public
@blp.arguments(ConsistencyArgs, location="query")
@blp.response(200, ConsistencySchema)
@blp.alt_response(404, "NOT_FOUND")
@blp.alt_response(409, "CONFLICT")
@blp.alt_response(422, "UNPROCESSABLE_ENTITY")
def consistency(args: dict[str, Any]) -> Response:
    """Read the consistency proof between two tree sizes (RFC 9162)."""
    with _log() as session:
        last = proofs.published(session)
        to = args.get("to", last.checkpoint.size)
        found = proofs.consistency(session, last, args["since"], to)
    body = {"from": args["since"], "to": to, "consistency": [each.hex() for each in found]}
    return answer(body, headers={"Cache-Control": "no-cache"})


@blp.route("/.well-known/jwks.json", methods=["GET"])
@public
@blp.response(200, JwksSchema)
def jwks() -> AnyResponse:
    """Read all public keys that ever signed, with their dates

    `purpose` is `bundle` or `log`. A key stopped signing at `retired_at`. If `revoked_at` is set,
    its signatures count only if others had seen the signed data in the log by then;
    `revocation_reason` says why. A log's key has its verifier key in `vkey`, and the log's own
    prefix in `prefix`.
    """
    with _log() as session:
        return _fresh(encode(reading.jwks(session)), "application/json")


def _log() -> AbstractContextManager[Session]:
    """Open a transaction that sees the service's own rows, and no tenant's."""
    return services().database.transaction(NO_TENANT)


def _fresh(body: bytes, content_type: str) -> AnyResponse:
    """Answer a body that may change, with an ETag for revalidation."""
    answered = Response(body, content_type=content_type, headers={"Cache-Control": "no-cache"})
    answered.set_etag(sha256(body).hexdigest())
    return answered.make_conditional(request)
