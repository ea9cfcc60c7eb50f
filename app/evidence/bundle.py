"""`bundle.json`: a record's content, as the canonical JSON that is hashed and signed.

A random nonce of 32 bytes keeps the content from being guessed from the SHA-256 that stays after
expiry. A stored bundle is never written anew; `read` parses it, of version 1 too.
"""

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NotRequired, TypedDict, cast

from app.evidence.times import unix_nanoseconds
from app.lib import canonical_json
from app.lib.canonical_json import JSON
from app.lib.crypto.randomness import random_bytes

V1 = "records/bundle/v1"
SCHEMA = "records/bundle/v2"
NONCE_BYTES = 32

_SPAN_ID = re.compile("(?!0{16})[0-9a-f]{16}", re.ASCII)
_TRACE_ID = re.compile("(?!0{32})[0-9a-f]{32}", re.ASCII)


class Agent(TypedDict):
    """The agent that acted, as it was named when the record was signed."""

    id: str
    name: str
    external_id: NotRequired[str]
    version: NotRequired[str]


def agent(agent_id: str, name: str, external_id: str | None, version: str | None) -> Agent:
    """Return an agent; what is None is left out."""
    found = Agent(id=agent_id, name=name)
    if external_id is not None:
        found["external_id"] = external_id
    if version is not None:
        found["version"] = version
    return found


class Session(TypedDict):
    """The session of a record."""

    id: str
    external_id: NotRequired[str]


class Record(TypedDict):
    """Metadata of a record. Ids are texts (`rec_…`), times RFC 3339 in UTC with `Z`.

    `models` are the names of models in the steps. `occurred_at` is null in version 1 alone.
    """

    id: str
    tenant_id: str
    session: Session
    agent: Agent
    principal: str
    kind: str
    title: str
    labels: dict[str, str]
    occurred_at: str | None
    created_at: str
    trace_id: NotRequired[str]
    models: NotRequired[list[str]]


class Event(TypedDict):
    """Something that happened during a step."""

    name: str
    at: str
    attributes: dict[str, JSON]


class Link(TypedDict):
    """A span, of any trace, that a step has to do with."""

    trace_id: str
    span_id: str
    attributes: dict[str, JSON]


class Step(TypedDict):
    """One thing the agent did. `inputs` and `outputs` are names, or values by name.

    Without `ended_at` nobody saw it end. Times have up to nine decimals.
    """

    name: str
    kind: str
    started_at: str
    status: Literal["ok", "error", "unset"]
    attributes: dict[str, JSON]
    events: list[Event]
    ended_at: NotRequired[str]
    inputs: NotRequired[list[str] | dict[str, JSON]]
    outputs: NotRequired[list[str] | dict[str, JSON]]
    span_id: NotRequired[str]
    parent_span_id: NotRequired[str]
    links: NotRequired[list[Link]]


class Approval(TypedDict):
    """A person's decision on what the agent did or wanted to do."""

    approved_by: str
    at: str
    decision: str
    note: NotRequired[str]


class Bundle(TypedDict):
    """A bundle as it is read; `nonce` is 32 bytes in base64url without padding."""

    schema: str
    record: Record
    content: JSON
    steps: list[Step]
    approvals: NotRequired[list[Approval]]
    nonce: str
    key_id: str


class _RecordV1(TypedDict):
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


_NOT_IN_V1 = frozenset({"span_id", "parent_span_id", "links"})


class NotABundle(ValueError):
    """These bytes are not a bundle; `pointer` (RFC 6901) says where, `detail` why not."""

    def __init__(self, pointer: str, detail: str) -> None:
        super().__init__(f"{pointer or 'the bundle'}: {detail}")
        self.pointer = pointer
        self.detail = detail


def write(
    record: Record,
    content: JSON,
    steps: Iterable[Mapping[str, Any]],
    approvals: Sequence[Approval] = (),
    *,
    key_id: str,
) -> bytes:
    """Write a new bundle, with a nonce of its own: the bytes to sign, hash and store.

    `key_id` names the key that will sign them. A step is a `Step` whose `events` and `attributes`,
    and those of its events and links, may be missing: none. Raises NotABundle when `read` could not
    take the result apart, TypeError and ValueError as `canonical_json.dumps` does.
    """
    nonce = base64.urlsafe_b64encode(random_bytes(NONCE_BYTES))
    bundle = {
        "schema": SCHEMA,
        "record": record,
        "content": content,
        "steps": [_complete(step) for step in steps],
        **({"approvals": approvals} if approvals else {}),
        "nonce": nonce.rstrip(b"=").decode("ascii"),
        "key_id": key_id,
    }
    raw = canonical_json.dumps(bundle)
    # A bundle that cannot be read back must never be signed.
    read(raw)
    return raw


def read(raw: bytes, agent_name: str = "") -> Bundle:
    """Take a bundle apart. Raises NotABundle for anything that no release has written.

    A bundle of version 1 is read as one of version 2; `agent_name` is its agent's name, which it
    lacks. Whether the bytes are the canonical ones, the signature over them tells.
    """
    try:
        value = canonical_json.parse(raw)
    except canonical_json.NotIJSON as error:
        raise NotABundle(error.pointer, error.detail) from None
    except canonical_json.NotJSON as error:
        raise NotABundle("", error.detail) from None
    optional = Bundle.__optional_keys__
    bundle = _members(value, "", Bundle.__required_keys__, optional)
    is_v1 = bundle["schema"] == V1
    if bundle["schema"] not in (V1, SCHEMA) or (is_v1 and bundle.keys() & optional):
        raise NotABundle("/schema", f"Not {SCHEMA}, nor {V1}.")
    _texts(bundle, "", ("nonce", "key_id"))
    if is_v1:
        bundle["record"] = _from_v1(bundle["record"], agent_name)
    _check_record(bundle["record"], is_v1=is_v1)
    for number, step in enumerate(_array(bundle["steps"], "/steps")):
        _check_step(step, f"/steps/{number}", is_v1=is_v1)
    for number, approval in enumerate(_array(bundle.get("approvals", []), "/approvals")):
        pointer = f"/approvals/{number}"
        _members(approval, pointer, Approval.__required_keys__, Approval.__optional_keys__)
        _texts(approval, pointer, approval)
        _times(approval, pointer, ("at",))
    return cast("Bundle", bundle)


def signature_header(key_id: str, signature: bytes) -> str:
    """Return the value of `x-service-bundle-signature`: the detached signature and its key."""
    in_base64 = base64.b64encode(signature).decode("ascii")
    return f'keyid="{key_id}", alg="ed25519", sig="{in_base64}"'


def is_trace_id(text: str) -> bool:
    """Say whether a text is a trace's id: 32 hex digits in lower case, not all zero."""
    return _TRACE_ID.fullmatch(text) is not None


def _complete(step: Mapping[str, Any]) -> dict[str, Any]:
    complete = {"attributes": {}, **step}
    for name in ("events", "links"):
        if name in step or name == "events":
            complete[name] = [{"attributes": {}, **each} for each in step.get(name, [])]
    return complete


def _from_v1(value: object, agent_name: str) -> dict[str, Any]:
    record = dict(_members(value, "/record", _RecordV1.__required_keys__))
    session, agent = {"id": record.pop("session_id")}, {"id": record.pop("agent_id")}
    return {**record, "session": session, "agent": {**agent, "name": agent_name}}


def _check_record(value: object, *, is_v1: bool) -> None:
    record = _members(value, "/record", Record.__required_keys__, Record.__optional_keys__)
    texts = Record.__required_keys__ - {"labels", "occurred_at", "session", "agent"}
    _texts(record, "/record", texts)
    named: tuple[tuple[str, Any], ...] = (("session", Session), ("agent", Agent))
    for name, kind in named:
        pointer = f"/record/{name}"
        inner = _members(record[name], pointer, kind.__required_keys__, kind.__optional_keys__)
        _texts(inner, pointer, inner)
    labels = _object(record["labels"], "/record/labels")
    _texts(labels, "/record/labels", labels)
    _times(record, "/record", ("created_at",))
    if record["occurred_at"] is not None or not is_v1:
        _times(record, "/record", ("occurred_at",))
    _ids(record, "/record", {"trace_id": _TRACE_ID})
    models = _array(record.get("models", []), "/record/models")
    if not all(isinstance(model, str) for model in models):
        raise NotABundle("/record/models", "Not an array of names.")


def _check_step(value: object, pointer: str, *, is_v1: bool) -> None:
    required, optional = Step.__required_keys__, Step.__optional_keys__
    if is_v1:
        required, optional = required | {"ended_at"}, optional - _NOT_IN_V1
    step = _members(value, pointer, required, optional)
    _texts(step, pointer, ("name", "kind"))
    _times(step, pointer, ("started_at", "ended_at") if "ended_at" in step else ("started_at",))
    if step["status"] not in ("ok", "error", "unset"):
        raise NotABundle(f"{pointer}/status", "Not ok, error or unset.")
    _object(step["attributes"], f"{pointer}/attributes")
    for side in step.keys() & {"inputs", "outputs"}:
        _check_names(step[side], f"{pointer}/{side}")
    for number, event in enumerate(_array(step["events"], f"{pointer}/events")):
        _check_event(event, f"{pointer}/events/{number}")
    _ids(step, pointer, {"span_id": _SPAN_ID, "parent_span_id": _SPAN_ID})
    for number, link in enumerate(_array(step.get("links", []), f"{pointer}/links")):
        place = f"{pointer}/links/{number}"
        _members(link, place, Link.__required_keys__)
        _ids(link, place, {"trace_id": _TRACE_ID, "span_id": _SPAN_ID})
        _object(link["attributes"], f"{place}/attributes")


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


def _ids(parent: Mapping[str, Any], pointer: str, forms: Mapping[str, re.Pattern[str]]) -> None:
    for name, form in forms.items():
        if name in parent:
            _texts(parent, pointer, (name,))
            if form.fullmatch(parent[name]) is None:
                raise NotABundle(f"{pointer}/{name}", "Not the id of a span or trace, in hex.")


def _times(parent: Mapping[str, Any], pointer: str, names: Iterable[str]) -> None:
    _texts(parent, pointer, names)
    for name in names:
        try:
            unix_nanoseconds(parent[name])
        except ValueError as error:
            raise NotABundle(f"{pointer}/{name}", str(error)) from None
