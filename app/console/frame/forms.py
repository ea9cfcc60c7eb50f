"""Input of forms and filters, read by the API's schemas; names typed for ids; repeated forms."""

import enum
import json
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qsl, urlencode

import marshmallow
from flask import g, request
from sqlalchemy.orm import Session
from werkzeug.datastructures import MultiDict
from werkzeug.wrappers import Response as AnyResponse

from app.api.http import parsing
from app.api.http.answers import encode
from app.api.http.services import caller, reads_objects, services, transaction
from app.api.resources.webhook_schemas import OwnHeaders
from app.console.frame import zone
from app.core import idempotency, lookup
from app.database import Tx
from app.errors import FieldError, Invalid
from app.schemas import fields

MEDIA_TYPE = "application/x-www-form-urlencoded"
# A thousand deliveries may be chosen, and a page has some more fields.
_MOST_FIELDS = 1_100
_FORM_TOKEN, _FORM_KEY = "_token", "_key"
_ITEM = re.compile(r"/[0-9]+$", re.ASCII)
_BOUND = re.compile(r"(\w+_)?(since|until)", re.ASCII)
_WHOLE_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,18}", re.ASCII)


# The most choices that are offered for a name.
_MOST_CHOICES = 20

# The kinds whose ids a field takes, by the field's name: none stands for all that have names.
_KINDS: dict[str, tuple[str, ...]] = {
    "agent_id": ("agt",),
    "pin.agent_id": ("agt",),
    "session_id": ("ses",),
    "webhook_id": ("whk",),
    "record_id": ("rec",),
    "finding_id": ("fnd",),
    "actor": ("key",),
    "target": (),
}
_ID = re.compile(r"[a-z]{3}_[0-9a-f]{32}", re.ASCII)
View = Callable[..., AnyResponse]


class Input:
    """The input of a form or of filters, as sent, and the errors by field."""

    def __init__(self, typed: MultiDict[str, str], errors: Mapping[str, str] | None = None) -> None:
        self.typed = typed
        self.errors = dict(errors or {})

    def value(self, name: str, default: object = "") -> str:
        """Return the text of a field."""
        return self.typed.get(name, "" if default is None else str(default))

    def values(self, name: str) -> list[str]:
        """Return all values of a field with several."""
        return self.typed.getlist(name)

    def refused(self, wrong: Invalid) -> "Input":
        """Return the same input with its errors."""
        # An error of an item is shown at its field.
        errors = {
            _ITEM.sub("", each.pointer)[1:].replace("/", "."): each.detail for each in wrong.fields
        }
        errors = {name: _advice(name) or detail for name, detail in errors.items()}
        return Input(self.typed, errors or {"": wrong.detail})

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Take the errors of an `Invalid` that the block raises, which ends the block only."""
        try:
            yield
        except Invalid as wrong:
            self.errors = self.refused(wrong).errors

    def load(self, schema: type[marshmallow.Schema]) -> dict[str, Any]:
        """Deserialize the input with a schema of the API; raises `Invalid`.

        An empty field counts as null if the schema allows that, else as not sent. `pin.agent_id` is
        the member of an object. Names that begin with `_` are the console's own.
        """
        made = schema()
        data: dict[str, Any] = {}
        for name in self.typed:
            if not name.startswith("_"):
                _put(made, data, name, [text for text in self.typed.getlist(name) if text])
        return parsing.load(made, data)

    def load_filters(self, schema: type[marshmallow.Schema]) -> dict[str, Any]:
        """Deserialize filters; where any is wrong, take its error, and return the defaults."""
        try:
            return self.load(schema)
        except Invalid as wrong:
            self.errors = self.refused(wrong).errors
        return parsing.load(schema(), {})

    @property
    def form_token(self) -> str:
        """The CSRF token, of the session whose page has shown the form."""
        return self.value(_FORM_TOKEN)

    def without(self, *names: str) -> "Input":
        """Return the input without some of its fields."""
        pairs = [pair for pair in self.typed.items(multi=True) if pair[0] not in names]
        return Input(MultiDict(pairs), self.errors)

    def kept_fields(self) -> list[tuple[str, str]]:
        """Return the user's fields; empty ones too, since they may stand for null."""
        return [
            (name, text)
            for name, text in self.typed.items(multi=True)
            if name and not name.startswith("_")
        ]

    def kept(self) -> str:
        """Return the same as one text, for `read`."""
        return urlencode(self.kept_fields())


def read(text: str) -> Input:
    """Return the input that a text of the form's media type holds; raises `Invalid`."""
    try:
        pairs = parse_qsl(
            text, keep_blank_values=True, max_num_fields=_MOST_FIELDS, errors="strict"
        )
    except ValueError:
        raise _no_form() from None
    return Input(MultiDict(pairs))


def sent() -> Input:
    """Return the form that this request sends; raises `Invalid`."""
    raw = parsing.body()
    if request.mimetype != MEDIA_TYPE:
        raise _no_form()
    try:
        with parsing.room_to_read():
            return Input(_with_ids(read(raw.decode("utf-8")).typed))
    except UnicodeDecodeError:
        raise _no_form() from None


def blank() -> Input:
    """Return an empty form. No link fills in a form, since its reader might send it unread."""
    return Input(MultiDict())


def query() -> Input:
    """Return the filters that this request's URL names."""
    return Input(MultiDict(request.args))


def exact_query() -> str | None:
    """Return this request's URL with exact times and with ids for names; None if it has them.

    So a URL means the same to every reader.
    """
    pairs = list(request.args.items(multi=True))
    named = _with_ids(MultiDict(request.args)).items(multi=True)
    made = [(name, zone.exact(text) if _BOUND.fullmatch(name) else text) for name, text in named]
    return None if made == pairs else f"{request.path}?{urlencode(made)}"


def new_key() -> str:
    """Return a fresh idempotency key for a form."""
    return secrets.token_hex(16)


def once(make: Callable[[Session], Any]) -> Any:
    """Return the result of `make`, or the stored result if the same form was sent before.

    It is called in a transaction. A second click waits for the first, and its page says that the
    form came twice. A changed form counts as another. If `make` raises, nothing is stored; what it
    returns is kept if it is a dictionary, a text or a number.
    """
    with transaction() as session:
        found = done_before(session)
        return keep(session, make(session)) if found is None else found


def do(verb: Callable[..., Any], *given: Any, show: Callable[[Any], Any] | None = None) -> Any:
    """Call a verb with a session, the caller and what is `given`, once, and `show` its result."""

    def make(session: Session) -> Any:
        made = verb(session, caller(), *given)
        return made if show is None else show(made)

    return once(make)


def shown_again(page: View) -> Callable[[View], View]:
    """Give a view the form that was sent; where it raises `Invalid`, show its page again.

    `page` gets the form with what is wrong, the status 422, and the arguments of the URL.
    """

    def decorate(view: View) -> View:
        @wraps(view)
        def tried(**inside: str) -> AnyResponse:
            typed = sent()
            try:
                return view(typed, **inside)
            except Invalid as wrong:
                return page(typed.refused(wrong), 422, **inside)

        return tried

    return decorate


def choices(kinds: Iterable[enum.StrEnum]) -> list[tuple[str, str]]:
    """Return the options of a choice among the members of an enumeration."""
    return [(each.value, each.value) for each in kinds]


def keep(session: Tx, made: object) -> Any:
    """Store the result of this form for a repeat, and return it."""
    kept = made if isinstance(made, dict | str | int) else {}
    _repeatable().keep(session, services().settings.master_keys, 200, encode(kept))
    return kept


def done_before(session: Tx) -> Any:
    """Return the stored result if the same form was sent before; None for the first time.

    A repeat waits until this transaction ends. Raises `Invalid` for a form without its key.
    """
    kept = _repeatable().find(session, services().settings.master_keys, wait=True)
    if kept is None:
        return None
    g.sent_twice = True
    return json.loads(kept[1])


def _repeatable() -> idempotency.Request:
    body = parsing.body()
    key = sent().value(_FORM_KEY)
    if not key:
        raise Invalid(FieldError("/_key", "Reload the page and send its form."))
    name = f"{key}/{sha256(body).hexdigest()}"
    return idempotency.Request.of(caller(), name, request.method, request.path, body)


def _no_form() -> Invalid:
    return Invalid(detail=f"Send a form as {MEDIA_TYPE}, with 1,100 fields at most.")


def _put(schema: marshmallow.Schema, data: dict[str, Any], name: str, texts: list[str]) -> None:
    """Put one field's texts into `data` as the JSON that its schema reads."""
    outer, _, inner = name.partition(".")
    field = schema.fields.get(outer)
    if isinstance(field, fields.Object) and inner:
        members = data.setdefault(outer, {}) if texts else None
        if isinstance(members, dict):
            _put(field.schema, members, inner, texts)
        elif texts:
            raise Invalid(FieldError(f"/{outer}", "Send the members of this field alone."))
    elif name in data:
        raise Invalid(FieldError(f"/{name}", "Send the members of this field alone."))
    elif texts:
        data[name] = _json(field, texts)
    elif field is not None and field.allow_none:
        data[name] = None


def header_lines(text: str) -> dict[str, str]:
    """Return headers by name from lines such as `Authorization: Bearer …`."""
    found: dict[str, str] = {}
    for line in filter(str.strip, text.splitlines()):
        name, colon, value = line.partition(":")
        if not colon or name.strip() in found:
            raise Invalid(FieldError("/headers", "Write each header once, in a line: Name: value"))
        found[name.strip()] = value.strip()
    return found


def _json(field: Any, texts: list[str]) -> Any:
    if isinstance(field, fields.Items):
        return [_json(field.inner, [text]) for text in texts]
    text = texts[0]
    if len(texts) > 1:
        return texts
    if isinstance(field, fields.QueryInteger):
        return text
    if isinstance(field, OwnHeaders):
        return header_lines(text)
    if isinstance(field, fields.Integer):
        return int(text) if _WHOLE_NUMBER.fullmatch(text) else text
    if isinstance(field, fields.Boolean):
        return {"true": True, "false": False}.get(text, text)
    return zone.exact(text) if isinstance(field, fields.Time) else text


def _with_ids(typed: MultiDict[str, str]) -> MultiDict[str, str]:
    """Return the input with ids in place of names that mean one object alone.

    What other names may mean is kept for `choices`.
    """
    names = {
        name: text
        for name, text in typed.items()
        if name in _KINDS and text.strip() and not _ID.fullmatch(text) and "caller" in g
    }
    if not names:
        return typed
    if g.get("picked_for") != names:
        g.picked_for, g.picks = names, _picks(names)
    meant = {name: found[0][0] for name, found in g.picks.items() if len(found) == 1}
    pairs = [(name, meant.get(name, text)) for name, text in typed.items(multi=True)]
    return MultiDict(pairs)


def kinds_of(field: str) -> tuple[str, ...]:
    """Return the prefixes of the ids that a field takes; none stands for all."""
    return _KINDS.get(field, ())


def meant_by(field: str) -> list[tuple[str, str]]:
    """Return the ids and titles of the objects that the name typed into a field may mean."""
    found: list[tuple[str, str]] = g.get("picks", {}).get(field, [])
    return found if len(found) > 1 else []


def _advice(field: str) -> str | None:
    """Return what to tell of a field whose text is neither an id nor one object's name."""
    if field not in g.get("picks", {}):
        return None
    return (
        "Several are named so: choose one." if meant_by(field) else "Nothing has this name or id."
    )


@reads_objects
def _picks(names: dict[str, str]) -> dict[str, list[tuple[str, str]]]:
    keys = services().settings.master_keys
    picks = {}
    with transaction() as session:
        for name, text in names.items():
            try:
                hits = lookup.find(session, caller(), keys, text, _MOST_CHOICES, _KINDS[name])
            except Invalid:  # there is no word in it
                hits = []
            found = [(lookup.represent(hit, "")["id"], hit.title) for hit in hits]
            # A whole name goes before those that it is a part of.
            whole = [each for each in found if each[1].lower() == text.strip().lower()]
            picks[name] = whole if len(whole) == 1 else found
    return picks
