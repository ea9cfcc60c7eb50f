"""Inclusion proofs of records in the transparency log, over HTTP."""

from typing import Any

from flask import Response

from app.api.http.requests.parsing import Blueprint
from app.api.http.responses.answers import answer
from app.api.http.services import services
from app.api.resources.log.log_schemas import LogProofSchema
from app.api.resources.records.bundle_access import ShareTokenArgs, admitted, bundle_content
from app.core.anchoring import quorum
from app.core.log import proofs
from app.core.records import records

blp = Blueprint(
    "log_proofs",
    __name__,
    url_prefix="/v1/records",
    description="Inclusion proofs of records in the transparency log.",
)


@blp.route("/<record_id>/log-proof", methods=["GET"])
@bundle_content(public=False)
@blp.arguments(ShareTokenArgs, location="query")
@blp.response(200, LogProofSchema)
@blp.alt_response(409, "CONFLICT")
def read(args: dict[str, Any], record_id: str) -> Response:
    """Read the inclusion proof of a record

    409 `log-pending` with `Retry-After` until a published checkpoint covers the record. That takes
    seconds or, where the service waits for its witnesses, as long as they take. Needs a key of the
    tenant or a share link of the record. The proof remains after the bundle has expired. Its
    checkpoint, the newest, has the cosignatures that witnesses have made so far.
    """
    with admitted() as (session, found):
        last = proofs.newest(session)
        proof = proofs.of_leaf(session, last, records.leaf_hash(found.bundle_sha256))
        note = quorum.cosigned(session, services().settings.witness_policy, last)
        return answer({**proof, "checkpoint": note.decode()})
