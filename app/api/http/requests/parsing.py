"""Reading requests strictly: a body that is exactly one JSON object, and no unknown parameter.

Nothing that a caller sends is ignored: a field, a query parameter or a body that the route does not
know is refused, with a pointer to it.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from heapq import nsmallest
from io import BytesIO
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast
from uuid import UUID

import flask
import flask_smorest
import marshmallow
from flask import current_app, g, request
from webargs.flaskparser import FlaskParser
from werkzeug.exceptions import ClientDisconnected, RequestEntityTooLarge

from app.api.http import promises
from app.api.http.requests import content_coding, large_bodies
from app.api.http.requests.content_coding import NotGzip, TooLong
from app.api.http.requests.headers import client_network
from app.errors import FieldError, Invalid, ServiceError
from app.lib import canonical_json
from app.lib.gateway.bodies import BodyCutShort, BodyTooSlow
from app.lib.gateway.gateway import READY
from app.schemas.fields import MOST_ERRORS

MAX_BODY = 1024 * 1024
MAX_RECORD = 8 * MAX_BODY
MEDIA_TYPE = "application/json"

_NOT_AN_OBJECT = "Send a JSON object."
_View = TypeVar("_View", bound=Callable[..., Any])
_Schema: TypeAlias = type[marshmallow.Schema] | marshmallow.Schema | dict[str, Any]


class UnsupportedMediaType(ServiceError, slug="unsupported-media-type", status=415):
    """The body is not declared as JSON, or is compressed in a way that this route does not take.

    Send Content-Type: application/json, and a Content-Encoding that Accept-Encoding in the answer
    names: the routes that take many things at once take gzip, all others none.
    """


class MalformedBody(ServiceError, slug="malformed-body", status=400):
    """The body is not JSON.

    Send one JSON text (RFC 8259) in UTF-8, without a byte-order mark. NaN and Infinity are not
    JSON.
    """


class StrictParser(FlaskParser):
    """Reads arguments from the JSON body and from the query string, in place of webargs."""

    def use_args(
        self, argmap: Any, req: Any = None, *, location: str | None = None, **_: Any
    ) -> Callable[[_View], _View]:
        """Decorate a view: it gets what its schema has loaded."""
        schema = argmap() if isinstance(argmap, type) else argmap
        read = _from_query if location == "query" else _from_body

        def decorate(view: _View) -> _View:
            @wraps(view)
            def reading(*args: Any, **kwargs: Any) -> Any:
                return view(*args, read(schema), **kwargs)

            return cast(_View, reading)

        return decorate


def _from_body(schema: marshmallow.Schema) -> dict[str, Any]:
    """Load the body; an absent one counts as `{}` where no field is required."""
    with room_to_read():
        return load(schema, json_object() if body() or _is_required(schema) else {})


def _from_query(schema: marshmallow.Schema) -> dict[str, Any]:
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


if TYPE_CHECKING:

    class _Untyped(flask.Blueprint):
        """flask-smorest's Blueprint, which ships no types: a decorated view is still a view."""

        def __init__(
            self,
            name: str,
            import_name: str,
            *,
            url_prefix: str = "",
            template_folder: str | None = None,
            description: str,
        ) -> None: ...
        def route(self, rule: str, **options: Any) -> Callable[[_View], _View]: ...
        def arguments(self, schema: _Schema, **options: Any) -> Callable[[_View], _View]: ...
        def response(
            self, status_code: int, schema: _Schema | None = None, **options: Any
        ) -> Callable[[_View], _View]: ...
        def alt_response(
            self, status_code: int, response: str | None = None, **options: Any
        ) -> Callable[[_View], _View]: ...
        @staticmethod
        def doc(**members: Any) -> Callable[[_View], _View]: ...
        def _prepare_arguments_doc(
            self, doc: dict[str, Any], doc_info: dict[str, Any], **given: Any
        ) -> dict[str, Any]: ...
else:
    _Untyped = flask_smorest.Blueprint


def _only_documented(decorate: Callable[[_View], _View]) -> Callable[[_View], _View]:
    """Leave what a decorator of flask-smorest says of a view, not the function that it makes."""

    def documented(view: _View) -> _View:
        view._apidoc = decorate(view)._apidoc  # type: ignore[attr-defined]  # noqa: SLF001
        return view

    return documented


class Blueprint(_Untyped):
    """A flask-smorest blueprint that reads strictly."""

    ARGUMENTS_PARSER = StrictParser()

    @staticmethod
    def doc(**members: Any) -> Callable[[_View], _View]:
        """Document a view; as the two below, without a function around it."""
        return _only_documented(_Untyped.doc(**members))

    def response(self, *args: Any, **options: Any) -> Callable[[_View], _View]:
        """Document the answer of a view, which is a `Response`."""
        return _only_documented(super().response(*args, **options))

    def alt_response(self, *args: Any, **options: Any) -> Callable[[_View], _View]:
        """Document another answer."""
        return _only_documented(super().alt_response(*args, **options))

    def arguments(self, schema: _Schema, **options: Any) -> Callable[[_View], _View]:
        """Read a view's arguments; a body is required, and documented so, if a field of it is."""
        if not isinstance(schema, dict):
            made = schema() if isinstance(schema, type) else schema
            options.setdefault("required", _is_required(made))
        return super().arguments(schema, **options)

    def _prepare_arguments_doc(
        self, doc: dict[str, Any], doc_info: dict[str, Any], **given: Any
    ) -> dict[str, Any]:
        """Document the parameters that `doc` adds beside those of the arguments, not instead."""
        described = super()._prepare_arguments_doc(doc, doc_info, **given)
        added = doc_info.get("manual_doc", {}).pop("parameters", [])
        if added:
            described["parameters"] = [*described.get("parameters", []), *added]
        return described


def _is_required(schema: marshmallow.Schema) -> bool:
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

    A large body is parsed, checked and processed within the bulkhead (`large_bodies`), that of any
    other view parsed and checked.
    """

    @wraps(view)
    def with_room(*args: Any, **kwargs: Any) -> Any:
        with large_bodies.room_for(_weight(), whose()):
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
    found: bytes | None = g.get("body")
    if found is None:
        try:
            g.body = found = _decoded(body_limit())
        except TooLong:
            raise RequestEntityTooLarge from None
    return found


def _weight() -> int:
    """Return the size of the body; of a compressed one that is large, only that it is.

    Such a body is unpacked later, in its place in the bulkhead, which so bounds the memory too.
    """
    found: bytes | None = g.get("body")
    if found is None:
        try:
            g.body = found = _decoded(large_bodies.LARGE)
        except TooLong:
            return large_bodies.LARGE + 1
    return len(found)


def _decoded(most: int) -> bytes:
    """Return the body without its coding; raises `TooLong` if it unpacks to more than `most`."""
    raw = _raw_body()
    coding = request.environ.get("HTTP_CONTENT_ENCODING", "identity").strip()
    if not raw or coding.lower() == "identity":
        return raw
    promises.leave()
    taken = getattr(_view(), "takes_gzip", False)
    if not taken or coding.lower() not in content_coding.GZIP:
        accepted = "gzip, identity" if taken else "identity"
        raise UnsupportedMediaType(
            f"This route takes a body with Content-Encoding {accepted}; it came with {coding}.",
            headers={"Accept-Encoding": accepted},
        )
    try:
        return content_coding.gunzip(raw, most)
    except NotGzip as error:
        raise MalformedBody(f"The body cannot be unpacked as gzip. {error}") from None


def _raw_body() -> bytes:
    """Return the body as it came; raises werkzeug's 413 when it is larger than the view takes."""
    limit = body_limit()
    stream = request.environ["wsgi.input"]
    if READY in request.environ and isinstance(stream, BytesIO):
        # The gateway has read it; werkzeug's way to it takes a twentieth of a small POST.
        raw = stream.getvalue()
    else:
        raw = _read_in_thread(limit)
    if len(raw) > limit:
        raise RequestEntityTooLarge
    return raw


def _read_in_thread(limit: int) -> bytes:
    # werkzeug truncates a body without a length (chunked) at the limit and raises nothing: one
    # byte more is let in, so that the excess is seen.
    request.max_content_length = limit + 1
    if (request.content_length or 0) > limit:
        raise RequestEntityTooLarge
    try:
        return request.get_data(cache=True)
    except ClientDisconnected as error:
        # A server that reads in the thread: its socket timed out, or the client disconnected.
        late = isinstance(error.__context__, TimeoutError)
        raise (BodyTooSlow if late else BodyCutShort) from None


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
    if size <= large_bodies.LARGE:
        return nullcontext()
    return large_bodies.room_for(size, whose(), unqueued=True)


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
    _check_media_type()
    try:
        with room_to_read():
            value = canonical_json.parse(body())
    except canonical_json.NotJSON as error:
        raise MalformedBody(f"The body cannot be read as JSON. {error.detail}") from None
    except canonical_json.NotIJSON as error:
        raise Invalid(FieldError(error.pointer, error.detail)) from None
    if not isinstance(value, dict):
        raise Invalid(FieldError("", _NOT_AN_OBJECT))
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


def _check_media_type() -> None:
    if request.environ.get("CONTENT_TYPE") == MEDIA_TYPE:
        return
    charset = request.mimetype_params.get("charset", "utf-8").lower()
    if request.mimetype != MEDIA_TYPE or charset not in ("utf-8", "utf8"):
        raise UnsupportedMediaType(
            f"Send the body as Content-Type: {MEDIA_TYPE}, in UTF-8; "
            f"it came as {request.content_type or 'no type at all'}."
        )


def _flatten(messages: Any, path: str) -> Iterator[FieldError]:
    """Walk marshmallow's messages: dicts by name or index, with lists of texts at the ends."""
    if isinstance(messages, Mapping):
        for step, inner in messages.items():
            here = path if step == marshmallow.exceptions.SCHEMA else path + pointer(step)
            yield from _flatten(inner, here)
    else:
        for text in [messages] if isinstance(messages, str) else messages:
            yield FieldError(path, text)
