"""Search over HTTP: whatever an id names, and records and findings by words."""

from typing import Any

from flask import Response

from app.api.http.access.auth import caller, requires
from app.api.http.requests import fields
from app.api.http.requests.parsing import Blueprint
from app.api.http.requests.schemas import AnswerSchema, Schema
from app.api.http.responses.json_responses import answer
from app.api.http.services import services
from app.api.http.transactions import transaction
from app.core import lookup
from app.core.callers import Role
from app.core.lookup import Type

MAX_LIMIT = 50
DEFAULT_LIMIT = 20

blp = Blueprint("search", __name__, url_prefix="/v1/search", description="Finding anything.")


class SearchArgs(Schema):
    """The search text."""

    q = fields.Text(
        1000,
        required=True,
        description="An id, with or without its prefix, with or without dashes; or words, all of "
        'which must be there, those in "quotes" as a phrase.',
        example="0192f0c1a2b37c4d8e5f60718293a4b5",
    )
    limit = fields.QueryInteger(
        1,
        MAX_LIMIT,
        load_default=DEFAULT_LIMIT,
        metadata={"description": "How many at most.", "default": DEFAULT_LIMIT},
    )


class HitSchema(AnswerSchema):
    """Something that was found."""

    type = fields.Choice(Type, example="finding")
    id = fields.AnyText(example="fnd_0192f0c1a2b37c4d8e5f60718293a4b5")
    title = fields.AnyText(
        description="Its title, name or kind; of a webhook its description, or the host it is on.",
        example="A refund went out without a second person",
    )
    url = fields.AnyText(
        description="Where it is read; of keys and share links, the list that has it.",
        example="https://records.example.com/v1/findings/fnd_0192f0c1a2b37c4d8e5f60718293a4b5",
    )


class HitsSchema(AnswerSchema):
    """Search results."""

    data = fields.Items(fields.Object(HitSchema), max_items=MAX_LIMIT)


@blp.route("", methods=["GET"])
@requires(Role.READ)
@blp.arguments(SearchArgs, location="query")
@blp.response(200, HitsSchema)
def search(args: dict[str, Any]) -> Response:
    """Find anything by its id, or records and findings by words

    An id finds what it names; where it names nothing, and for words, the newest records and
    findings that have them (`GET /v1/records?q=` and `GET /v1/findings?q=` have all, in pages).
    Another tenant's id finds nothing. A pinned key finds what lies under its pin.
    """
    settings = services().settings
    with transaction() as session:
        hits = lookup.find(session, caller(), settings.master_keys, args["q"], args["limit"])
    return answer({"data": [lookup.represent(hit, settings.base_url) for hit in hits]})
