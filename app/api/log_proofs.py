"""A record's proof that it is in the transparency log, over HTTP."""

from flask import Response

from app import ids
from app.api.answers import answer
from app.api.auth import caller, requires
from app.api.log_schemas import LogProofSchema
from app.api.parsing import Blueprint
from app.api.transactions import transaction
from app.core.callers import Role
from app.core.log import proofs
from app.core.record import records

blp = Blueprint(
    "log_proofs",
    __name__,
    url_prefix="/v1/records",
    description="What proves that a record is in the transparency log.",
)


@blp.route("/<record_id>/log-proof", methods=["GET"])
@requires(Role.READ)
@blp.response(200, LogProofSchema)
@blp.alt_response(409, "CONFLICT")
def read(record_id: str) -> Response:
    """Prove that a record is in the log

    409 `log-pending` with `Retry-After` until a published checkpoint covers it: seconds at most.
    """
    with transaction() as session:
        found = records.find(session, caller(), ids.parse("rec", record_id))
        return answer(proofs.of_leaf(session, records.leaf_hash(found.bundle_sha256)))
