"""`bundle.json`: a record's content, as the canonical JSON that is hashed and signed.

A random nonce of 32 bytes keeps the content from being guessed from the SHA-256 that stays after
expiry. A stored bundle is never written anew; `read` parses it.
"""

import base64
import secrets
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NotRequired, TypedDict, cast

from app.evidence.times import unix_nanoseconds
from app.lib import canonical_json
from app.lib.canonical_json import JSON

SCHEMA = "records/bundle/v1"
NONCE_BYTES = 32


class Record(TypedDict):
    """Metadata of a record. Ids are texts (`rec_…`), times RFC 3339 in UTC with `Z`."""

    id: str
    tenant_id: str
    session_id: str
    agent_id: str
    principal: str
    kind: str
    title: str
    labels: dict[str, str]
    occurred_at: str | None
    created_at: str


class Event(TypedDict):
    """Something that happened during a step."""

    name: str
    at: str
    attributes: dict[str, JSON]


class Step(TypedDict):
    """One thing the agent did. `inputs` and `outputs` are names, or values by name."""

    name: str
    kind: str
    started_at: str
    ended_at: str
    status: Literal["ok", "error", "unset"]
    attributes: dict[str, JSON]
    events: list[Event]
    inputs: NotRequired[list[str] | dict[str, JSON]]
    outputs: NotRequired[list[str] | dict[str, JSON]]


class Bundle(TypedDict):
    """A bundle as it is read; `nonce` is 32 bytes in base64url without padding."""

    schema: str
    record: Record
    content: JSON
    steps: list[Step]
    nonce: str
    key_id: str


class NotABundle(ValueError):
    """These bytes are not a bundle; `pointer` (RFC 6901) says where, `detail` why not."""

    def __init__(self, pointer: str, detail: str) -> None:
        super().__init__(f"{pointer or 'the bundle'}: {detail}")
        self.pointer = pointer
        self.detail = detail


def write(
    record: Record, content: JSON, steps: Iterable[Mapping[str, Any]], *, key_id: str
) -> bytes:
    """Write a new bundle, with a nonce of its own: the bytes to sign, hash and store.

    `key_id` names the key that will sign them. A step is a `Step` whose `events` and `attributes`,
    and those of its events, may be missing: none. Raises NotABundle when `read` could not take the
    result apart, TypeError and ValueError as `canonical_json.dumps` does.
    """
    nonce = base64.urlsafe_b64encode(secrets.token_bytes(NONCE_BYTES))
    bundle = {
        "schema": SCHEMA,
        "record": record,
        "content": content,
        "steps": [_complete(step) for step in steps],
        "nonce": nonce.rstrip(b"=").decode("ascii"),
        "key_id": key_id,
    }
    raw = canonical_json.dumps(bundle)
    # A bundle that cannot be read back must never be signed.
    read(raw)
    return raw


def read(raw: bytes) -> Bundle:
    """Take a bundle apart. Raises NotABundle for anything that `write` would not have written.

    Whether the bytes are the canonical ones, the signature over them tells.
    """
    try:
        value = canonical_json.parse(raw)
    except canonical_json.NotIJSON as error:
        raise NotABundle(error.pointer, error.detail) from None
    except canonical_json.NotJSON as error:
        raise NotABundle("", error.detail) from None
    bundle = _members(value, "", Bundle.__required_keys__)
    if bundle["schema"] != SCHEMA:
        raise NotABundle("/schema", f"Not {SCHEMA}.")
    _texts(bundle, "", ("nonce", "key_id"))
    _check_record(bundle["record"])
    for number, step in enumerate(_array(bundle["steps"], "/steps")):
        _check_step(step, f"/steps/{number}")
    return cast("Bundle", bundle)


def signature_header(key_id: str, signature: bytes) -> str:
    """Return the value of `x-service-bundle-signature`: the detached signature and its key."""
    in_base64 = base64.b64encode(signature).decode("ascii")
    return f'keyid="{key_id}", alg="ed25519", sig="{in_base64}"'


def _complete(step: Mapping[str, Any]) -> dict[str, Any]:
    events = [{"attributes": {}, **event} for event in step.get("events", [])]
    return {"attributes": {}, **step, "events": events}


def _check_record(value: object) -> None:
    record = _members(value, "/record", Record.__required_keys__)
    _texts(record, "/record", Record.__required_keys__ - {"labels", "occurred_at"})
    labels = _object(record["labels"], "/record/labels")
    _texts(labels, "/record/labels", labels)
    _times(record, "/record", ("created_at",))
    if record["occurred_at"] is not None:
        _times(record, "/record", ("occurred_at",))


def _check_step(value: object, pointer: str) -> None:
    step = _members(value, pointer, Step.__required_keys__, Step.__optional_keys__)
    _texts(step, pointer, ("name", "kind"))
    _times(step, pointer, ("started_at", "ended_at"))
    if step["status"] not in ("ok", "error", "unset"):
        raise NotABundle(f"{pointer}/status", "Not ok, error or unset.")
    _object(step["attributes"], f"{pointer}/attributes")
    for side in step.keys() & Step.__optional_keys__:
        _check_names(step[side], f"{pointer}/{side}")
    for number, event in enumerate(_array(step["events"], f"{pointer}/events")):
        _check_event(event, f"{pointer}/events/{number}")


def _check_names(value: object, pointer: str) -> None:
    named = isinstance(value, list) and all(isinstance(name, str) for name in value)
    if not (named or isinstance(value, dict)):
        raise NotABundle(pointer, "Neither an array of names nor an object of values by name.")


def _check_event(value: object, pointer: str) -> None:
    event = _members(value, pointer, Event.__required_keys__)
    _texts(event, pointer, ("name",))
    _times(event, pointer, ("at",))
    _object(event["attributes"], f"{pointer}/attributes")


def _members(
    value: object, pointer: str, required: frozenset[str], optional: frozenset[str] = frozenset()
) -> dict[str, Any]:
    found = _object(value, pointer)
    if not required <= found.keys() <= required | optional:
        raise NotABundle(pointer, f"Its members are not {', '.join(sorted(required))}.")
    return found


def _object(value: object, pointer: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise NotABundle(pointer, "Not an object.")
    return value


def _array(value: object, pointer: str) -> list[Any]:
    if not isinstance(value, list):
        raise NotABundle(pointer, "Not an array.")
    return value


def _texts(parent: Mapping[str, Any], pointer: str, names: Iterable[str]) -> None:
    for name in names:
        if not isinstance(parent[name], str):
            raise NotABundle(f"{pointer}/{name}", "Not a string.")


def _times(parent: Mapping[str, Any], pointer: str, names: Iterable[str]) -> None:
    _texts(parent, pointer, names)
    for name in names:
        try:
            unix_nanoseconds(parent[name])
        except ValueError as error:
            raise NotABundle(f"{pointer}/{name}", str(error)) from None
