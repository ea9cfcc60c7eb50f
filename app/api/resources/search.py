"""Search over HTTP: any resource by id or name; records and findings by words."""

from typing import Any

from app.api.http.auth import READ
from app.api.http.routes import Routes
from app.api.http.services import caller, prefers_replica, reads_objects, services, transaction
from app.core import lookup
from app.core.lookup import Type
from app.schemas import fields
from app.schemas.schema import AnswerSchema, Schema

MAX_LIMIT = 50
DEFAULT_LIMIT = 20

blp = Routes("search", __name__, url_prefix="/v1/search", description="Search by id or words.")


class SearchArgs(Schema):
    """The search text."""

    q = fields.Text(
        1000,
        required=True,
        description="An id, with or without its prefix, with or without dashes; or words, which "
        'must all match; words in "quotes" match as a phrase.',
        example="0192f0c1a2b37c4d8e5f60718293a4b5",
    )
    limit = fields.QueryInteger(
        1,
        MAX_LIMIT,
        load_default=DEFAULT_LIMIT,
        metadata={"description": "The largest number of results.", "default": DEFAULT_LIMIT},
    )


class HitSchema(AnswerSchema):
    """A search result."""

    type = fields.Choice(Type, example="finding")
    id = fields.AnyText(example="fnd_0192f0c1a2b37c4d8e5f60718293a4b5")
    title = fields.AnyText(
        description="Its title, name or kind; for a webhook its description or its host.",
        example="A refund went out without a second person",
    )
    url = fields.AnyText(
        description="The URL to read it; for keys and share links, of the list that contains it.",
        example="https://records.example.com/v1/findings/fnd_0192f0c1a2b37c4d8e5f60718293a4b5",
    )


class HitsSchema(AnswerSchema):
    """Search results."""

    data = fields.Items(fields.Object(HitSchema), max_items=MAX_LIMIT)


@blp.serves(
    "GET",
    READ,
    HitsSchema,
    args=SearchArgs,
    around=(prefers_replica, reads_objects),
)
def search(args: dict[str, Any]) -> dict[str, Any]:
    """Find any resource by its id or name; records and findings by words

    An id finds the resource that it names. Anything else finds the agent and the session with that
    `external_id`; agents, sessions, webhooks, keys and rules whose name has all the words, or parts
    of words; then the newest records and findings that have them (`GET /v1/records?q=` and
    `GET /v1/findings?q=` return all, in pages). Another
    tenant's id finds nothing. A pinned key finds only what its pin covers.
    """
    settings = services().settings
    with transaction() as session:
        hits = lookup.find(session, caller(), settings.master_keys, args["q"], args["limit"])
    return {"data": [lookup.represent(hit, settings.base_url) for hit in hits]}
