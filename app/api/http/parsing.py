"""Reading requests strictly: a body that is exactly one JSON object, and no unknown parameter.

Nothing that a caller sends is ignored: a field, a query parameter or a body that the route does not
know is refused, with a pointer to it.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from heapq import nsmallest
from io import BytesIO
from itertools import islice
from operator import attrgetter
from typing import Any, TypeVar, cast
from uuid import UUID

import marshmallow
from flask import current_app, g, request
from werkzeug.exceptions import ClientDisconnected, RequestEntityTooLarge

from app.api.http import large_work, promises
from app.api.http.services import client_network
from app.errors import FieldError, Invalid, MalformedBody, UnsupportedMediaType
from app.lib import canonical_json
from app.lib.gateway.gateway import READY
from app.lib.gateway.requests import BodyCutShort, BodyTooSlow
from app.schemas.fields import MOST_ERRORS

MAX_BODY = 1024 * 1024
MAX_RECORD = 8 * MAX_BODY
MEDIA_TYPE = "application/json"

# RFC 9110 section 8.4.1.3 has both names mean the same.
_GZIP = ("gzip", "x-gzip")
# zlib's name for a window of 32 KiB with gzip's header and trailer.
_WINDOW = 31
_View = TypeVar("_View", bound=Callable[..., Any])


class _TooLong(Exception):
    """A body unpacks to more than may be."""


def from_body(schema: marshmallow.Schema) -> dict[str, Any]:
    """Load the body; an absent one counts as `{}` where no field is required."""
    with room_to_read():
        return load(schema, json_object() if body() or is_required(schema) else {})


def from_query(schema: marshmallow.Schema) -> dict[str, Any]:
    """Load the query string; only a list may be given more than once."""
    lists = {
        field.data_key or name
        for name, field in schema.fields.items()
        if isinstance(field, marshmallow.fields.List)
    }
    given = dict(request.args.lists())
    repeated = [name for name, values in given.items() if len(values) > 1 and name not in lists]
    if repeated:
        raise Invalid(*(_in_query(pointer(name), "Given more than once.") for name in repeated))
    try:
        sent = {name: values if name in lists else values[0] for name, values in given.items()}
        return load(schema, sent)
    except Invalid as error:
        raise Invalid(*(_in_query(each.pointer, each.detail) for each in error.fields)) from None


def _in_query(place: str, detail: str) -> FieldError:
    return FieldError(place, f"Query parameter: {detail}")


def is_required(schema: marshmallow.Schema) -> bool:
    """Return whether an object needs any field."""
    return any(field.required for field in schema.fields.values())


def load(schema: marshmallow.Schema, sent: Mapping[str, Any]) -> dict[str, Any]:
    """Deserialize an object with a schema; raises `Invalid`."""
    try:
        return cast(dict[str, Any], schema.load(sent))
    except marshmallow.ValidationError as error:
        raise refusal(error) from None


def refusal(error: marshmallow.ValidationError, most: int = MOST_ERRORS) -> Invalid:
    """Return the error of what a schema refused, with at most `most` places."""
    places = _flatten(error.messages, "")
    return Invalid(*nsmallest(most, places, key=attrgetter("pointer")))


def takes_a_record(view: _View) -> _View:
    """Let the view's body have up to 8 MiB; any other view takes 1 MiB.

    A large body is parsed, checked and processed within the bulkhead (`large_work`), that of any
    other view parsed and checked.
    """

    @wraps(view)
    def with_room(*args: Any, **kwargs: Any) -> Any:
        with large_work.room_for(_weight(), whose()):
            return view(*args, **kwargs)

    with_room.max_body = MAX_RECORD  # type: ignore[attr-defined]  # read back by body()
    return cast(_View, with_room)


def takes_bytes(view: _View) -> _View:
    """Let the view read a body of its own form, of up to 8 MiB, by `body`."""
    view.max_body = MAX_RECORD  # type: ignore[attr-defined]  # read back by body_limit
    view.reads_body = True  # type: ignore[attr-defined]  # read back by undeclared_input
    return view


def body() -> bytes:
    """Return the body, unpacked; raises werkzeug's 413 when it is larger than the view takes.

    Raises the media type's error for a coding that the view does not take.
    """
    try:
        return _body(body_limit())
    except _TooLong:
        raise RequestEntityTooLarge from None


def _weight() -> int:
    """Return the size of the body; of a compressed one that is large, only that it is.

    Such a body is unpacked later, in its place in the bulkhead, which so bounds the memory too.
    """
    try:
        return len(_body(large_work.LARGE))
    except _TooLong:
        return large_work.LARGE + 1


def _body(most: int) -> bytes:
    found: bytes | None = g.get("body")
    if found is None:
        g.body = found = _decoded(most)
    return found


def _decoded(most: int) -> bytes:
    """Return the body without its coding; raises `_TooLong` if it unpacks to more than `most`."""
    raw = _raw_body()
    coding = request.environ.get("HTTP_CONTENT_ENCODING", "identity").strip()
    if not raw or coding.lower() == "identity":
        return raw
    promises.leave()
    taken = getattr(_view(), "takes_gzip", False)
    if not taken or coding.lower() not in _GZIP:
        accepted = "gzip, identity" if taken else "identity"
        raise UnsupportedMediaType(
            f"This route takes a body with Content-Encoding {accepted}; it came with {coding}.",
            headers={"Accept-Encoding": accepted},
        )
    return _gunzipped(raw, most)


def _gunzipped(packed: bytes, most: int) -> bytes:
    """Return what one gzip member holds; a bomb costs no more than `most` bytes.

    A second member is refused: each costs more than its bytes, and no HTTP client sends any.
    """
    reader = zlib.decompressobj(_WINDOW)
    try:
        content = reader.decompress(packed, most + 1)
        wrong = "" if reader.eof else "It ends too early."
    except zlib.error as error:
        content, wrong = b"", str(error)
    if len(content) > most:
        raise _TooLong
    if wrong or reader.unused_data:
        told = wrong or "Something follows the first gzip member."
        raise MalformedBody(f"The body cannot be unpacked as gzip. {told}")
    return content


def _raw_body() -> bytes:
    """Return the body as it came; raises werkzeug's 413 when it is larger than the view takes."""
    limit = body_limit()
    stream = request.environ["wsgi.input"]
    if READY in request.environ and isinstance(stream, BytesIO):
        # The gateway has read it; werkzeug's way to it takes a twentieth of a small POST.
        raw = stream.getvalue()
    else:
        # werkzeug truncates a body without a length (chunked) at the limit and raises nothing: one
        # byte more is let in, so that the excess is seen.
        request.max_content_length = limit + 1
        if (request.content_length or 0) > limit:
            raise RequestEntityTooLarge
        try:
            raw = request.get_data(cache=True)
        except ClientDisconnected as error:
            # From a server that reads in the thread.
            late = isinstance(error.__context__, TimeoutError)
            raise (BodyTooSlow if late else BodyCutShort) from None
    if len(raw) > limit:
        raise RequestEntityTooLarge
    return raw


def body_limit() -> int:
    """Return how many bytes a body of this request may have, as its view declares."""
    limit: int = getattr(_view(), "max_body", MAX_BODY)
    return limit


def _view() -> Callable[..., Any] | None:
    return current_app.view_functions.get(request.endpoint or "")


def whose() -> UUID | str:
    """Return whom a body counts for: the caller's tenant, or the client's address without one."""
    return g.caller.tenant_id if "caller" in g else client_network()


def room_to_read() -> AbstractContextManager[None]:
    """Hold a place in the bulkhead while a large body is parsed and checked."""
    size = _weight()
    if size <= large_work.LARGE:
        return nullcontext()
    return large_work.room_for(size, whose(), unqueued=True)


def json_object() -> dict[str, Any]:
    """Read the body as one JSON object; raises `MalformedBody` or the media type's error.

    Raises `Invalid` for JSON that is no I-JSON (RFC 7493) or no object.
    """
    if "json_object" not in g:
        g.json_object = _read_object()
    return cast(dict[str, Any], g.json_object)


def canonical_body() -> bytes:
    """Return the JSON body in canonical form (RFC 8785); of an absent one `{}`."""
    return canonical_json.dumps(json_object() if body() else {})


def _read_object() -> dict[str, Any]:
    if not body():
        raise MalformedBody("The body is empty; send a JSON object.")
    if request.environ.get("CONTENT_TYPE") != MEDIA_TYPE:
        charset = request.mimetype_params.get("charset", "utf-8").lower()
        if request.mimetype != MEDIA_TYPE or charset not in ("utf-8", "utf8"):
            raise UnsupportedMediaType(
                f"Send the body as Content-Type: {MEDIA_TYPE}, in UTF-8; "
                f"it came as {request.content_type or 'no type at all'}."
            )
    try:
        with room_to_read():
            value = canonical_json.parse(body())
    except canonical_json.NotJSON as error:
        raise MalformedBody(f"The body cannot be read as JSON. {error.detail}") from None
    except canonical_json.NotIJSON as error:
        raise Invalid(FieldError(error.pointer, error.detail)) from None
    if not isinstance(value, dict):
        raise Invalid(FieldError("", "Send a JSON object."))
    return value


def undeclared_input(view: Callable[..., object]) -> Callable[[], None]:
    """Return a function that refuses input which the view does not declare (body, query)."""
    arguments = getattr(view, "_apidoc", {}).get("arguments", {}).get("parameters", ())
    locations = {argument["in"] for argument in arguments}

    def refuse() -> None:
        if "query" not in locations and request.args:
            unknown = sorted(request.args)
            raise Invalid(*(_in_query(pointer(name), "Unknown field.") for name in unknown))
        declared = "json" in locations or hasattr(view, "reads_body")
        if not declared and request.method not in ("GET", "HEAD") and body():
            text, sent = "This request takes no fields.", islice(json_object(), MOST_ERRORS)
            if wrong := [FieldError(pointer(name), text) for name in sent]:
                raise Invalid(*wrong)

    return refuse


def pointer(*steps: object) -> str:
    """Join steps into a JSON pointer (RFC 6901)."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps)


def _flatten(messages: Any, path: str) -> Iterator[FieldError]:
    """Walk marshmallow's messages: dicts by name or index, with lists of texts at the ends."""
    if isinstance(messages, Mapping):
        for step, inner in messages.items():
            here = path if step == marshmallow.exceptions.SCHEMA else path + pointer(step)
            yield from _flatten(inner, here)
    else:
        for text in [messages] if isinstance(messages, str) else messages:
            yield FieldError(path, text)
