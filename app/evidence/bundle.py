"""`bundle.json`: a record's content, as the canonical JSON that is hashed and signed.

A random nonce of 32 bytes keeps the content from being guessed from the SHA-256 that stays after
expiry. A stored bundle is never written anew; `read` parses it, of version 1 too.
"""

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NotRequired, TypedDict, cast

from app.lib import canonical_json
from app.lib.canonical_json import JSON
from app.lib.crypto.randomness import random_bytes

V1 = "records/bundle/v1"
SCHEMA = "records/bundle/v2"
NONCE_BYTES = 32

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
    and those of its events and links, may be missing: none. Their shape is that of the types here:
    whoever takes them from others has checked it. Raises TypeError and ValueError for values that
    canonical JSON cannot hold, or that nest too deep to be read back.
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
    # What cannot be read back must never be signed.
    canonical_json.parse(raw)
    return raw


def read(raw: bytes, agent_name: str = "") -> Bundle:
    """Take a bundle apart; raises ValueError for what is none.

    A bundle of version 1 is read as one of version 2; `agent_name` is its agent's name, which it
    lacks. Whether the bytes are the canonical ones, the signature over them tells.
    """
    bundle: Any = canonical_json.parse(raw)
    schema = bundle.get("schema") if isinstance(bundle, dict) else None
    if schema == V1:
        record = bundle["record"]
        record["session"] = {"id": record.pop("session_id")}
        record["agent"] = {"id": record.pop("agent_id"), "name": agent_name}
    elif schema != SCHEMA:
        raise ValueError(f"This is no bundle: its schema is neither {SCHEMA} nor {V1}.")
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
