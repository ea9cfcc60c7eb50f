"""Input of forms and filters, read by the API's schemas; and idempotency of repeated forms."""

import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qsl, urlencode

import marshmallow
from flask import g, request
from sqlalchemy.orm import Session
from werkzeug.datastructures import MultiDict

from app.api.http import parsing
from app.api.http.answers import encode
from app.api.http.services import caller, services, transaction
from app.api.resources.webhook_schemas import OwnHeaders
from app.console.frame import picking, zone
from app.core import idempotency
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
        errors = {name: picking.advice(name) or detail for name, detail in errors.items()}
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
            return Input(picking.resolve(read(raw.decode("utf-8")).typed))
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
    named = picking.resolve(MultiDict(request.args)).items(multi=True)
    made = [(name, zone.exact(text) if _BOUND.fullmatch(name) else text) for name, text in named]
    return None if made == pairs else f"{request.path}?{urlencode(made)}"


def new_key() -> str:
    """Return a fresh idempotency key for a form."""
    return secrets.token_hex(16)


def once(make: Callable[[Session], object]) -> dict[str, Any]:
    """Return the result of `make`, or the stored result if the same form was sent before.

    It is called in a transaction. A second click waits for the first, and its page says that the
    form came twice. A changed form counts as another. If `make` raises, nothing is stored; what it
    returns is kept if it is a dictionary.
    """
    with transaction() as session:
        found = done_before(session)
        return keep(session, make(session)) if found is None else found


def keep(session: Tx, made: object) -> dict[str, Any]:
    """Store the result of this form for a repeat, and return it."""
    kept = made if isinstance(made, dict) else {}
    _repeatable().keep(session, services().settings.master_keys, 200, encode(kept))
    return kept


def done_before(session: Tx) -> dict[str, Any] | None:
    """Return the stored result if the same form was sent before; None for the first time.

    A repeat waits until this transaction ends. Raises `Invalid` for a form without its key.
    """
    kept = _repeatable().find(session, services().settings.master_keys, wait=True)
    if kept is None:
        return None
    g.sent_twice = True
    found: dict[str, Any] = json.loads(kept[1])
    return found


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


def _header_lines(text: str) -> dict[str, str]:
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
        return _header_lines(text)
    if isinstance(field, fields.Integer):
        return int(text) if _WHOLE_NUMBER.fullmatch(text) else text
    if isinstance(field, fields.Boolean):
        return {"true": True, "false": False}.get(text, text)
    return zone.exact(text) if isinstance(field, fields.Time) else text
