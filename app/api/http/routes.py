"""Routes, each declared at once: method and path, access, what it takes, what it answers.

As flask-smorest's `route`, `arguments` and `response` in one, with the access check in its place
between them. A decorated view stays as it was written: others may call it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from http import HTTPStatus
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, TypeAlias, TypeVar

from flask import Response
from marshmallow import Schema

from app.api.http.answers import answer, no_content
from app.api.http.documentation import REFUSALS, Blueprint
from app.api.http.paging import PageArgs, page, page_schema
from app.api.http.services import transaction
from app.schemas.schema import AnswerSchema

_View = TypeVar("_View", bound=Callable[..., Any])
_Decorator: TypeAlias = Callable[[Any], Any]
_Type: TypeAlias = type[Schema]


class ListedBy(NamedTuple):
    """How a list is declared: its rows' schema, its query's, what shows a row and says its place.

    It is `listed` of the view, for other lists of the same rows.
    """

    item: type[AnswerSchema]
    args: _Type
    represent: Callable[[Any], dict[str, Any]]
    position: Callable[[Any], Any]


class Routes(Blueprint):
    """A blueprint whose routes are declared.

    `route` is the method and the path below the prefix: `GET /<agent_id>`. `access` decorates the
    view with its rule (`auth.READ`, `auth.public`). `takes` is the schema of the body, `args` that
    of the query; the view gets what they loaded, in this order, before the ids of its path. Beside
    the usual refusals it may answer those of `errors`, and by `also` another schema with a status.
    `around` are decorators of all that follows the access check.
    """

    def serves(
        self,
        route: str,
        access: _Decorator,
        schema: _Type | dict[str, Any] | None = None,
        status: int = 200,
        *,
        takes: _Type | None = None,
        args: _Type | None = None,
        errors: Iterable[int] = (),
        also: Mapping[int, _Type] | None = None,
        around: Sequence[_Decorator] = (),
        endpoint: str | None = None,
        **told: Any,
    ) -> Callable[[_View], _View]:
        """Declare a view: it returns the JSON to answer, None for no content, or a `Response`.

        Without a schema, decorators below document what a 200 holds; `told` is more to document.
        """
        method, _, path = route.partition(" ")
        within: list[_Decorator] = [access, *around]
        within += [self.arguments(takes)] if takes else []
        within += [self.arguments(args, location="query")] if args else []
        within += [self.alt_response(each, REFUSALS[each][0]) for each in errors]
        within += [self.alt_response(each, schema=of) for each, of in (also or {}).items()]
        if schema is not None or status != HTTPStatus.OK:
            within.append(self.response(status, schema, **told))

        def declare(view: _View) -> _View:
            @wraps(view)
            def answering(*given: Any, **named: Any) -> Response:
                made = view(*given, **named)
                if isinstance(made, Response):
                    return made
                return no_content() if made is None else answer(made, status)

            served: Any = answering
            for decorate in reversed(within):
                served = decorate(served)
            self.route(path, methods=[method], endpoint=endpoint)(served)
            return view

        return declare

    def lists(
        self,
        route: str,
        access: _Decorator,
        item: type[AnswerSchema],
        args: _Type = PageArgs,
        *,
        represent: Callable[[Any], dict[str, Any]] | None = None,
        position: Callable[[Any], Any] = attrgetter("id"),
        schema: _Type | None = None,
        endpoint: str = "list",
        snapshot: bool = False,
        **declared: Any,
    ) -> Callable[[_View], _View]:
        """Declare a list: its view returns the rows behind a position, as `paging.page` fetches.

        The view gets a session, the query, the position and a limit, then the ids of its path. Its
        rows are represented by `represent`, or else by their schema `item`. `schema` is that of a
        page, if not the usual one.
        """
        serve = self.serves(
            f"GET {route}",
            access,
            schema or page_schema(item),
            args=args,
            endpoint=endpoint,
            **declared,
        )
        show = represent or item.of

        def declare(view: _View) -> _View:
            @wraps(view)
            def listing(query: dict[str, Any], **named: Any) -> Response:
                with transaction(snapshot=snapshot) as session:
                    return page(
                        query, lambda *where: view(session, query, *where, **named), show, position
                    )

            serve(listing)
            view.listed = ListedBy(item, args, show, position)  # type: ignore[attr-defined]
            return view

        return declare


PAIRS: dict[str, Any] = {"position": itemgetter(0), "represent": itemgetter(1)}
"""Of a list whose rows are pairs of a position and JSON."""
