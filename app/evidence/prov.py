"""A record as W3C PROV-JSON, streamed (https://www.w3.org/submissions/prov-json/).

Session, steps and approvals are activities; a step is informed by the one before it under its
parent, else by the parent, if that began in time. The bundle is an entity, and so is each version
of an input or output.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from urllib.parse import quote

from app.evidence.bundle import Bundle, Record, Step
from app.evidence.streaming import compact, enclosed, in_chunks
from app.evidence.times import began, ended
from app.lib import canonical_json
from app.lib.canonical_json import JSON


class Unknown:
    """The value of what was only named."""


UNKNOWN = Unknown()


@dataclass(slots=True, eq=False)
class Version:
    """One state of what a name stands for; `maker` is the index of the step that made it.

    The first version has number 1. Without a maker it came from outside the record.
    """

    name: str
    number: int
    value: "JSON | Unknown"
    maker: int | None
    older: "Version | None"


@dataclass(slots=True)
class DataFlow:
    """All versions, in the order of their first appearance, and who used which (step index)."""

    versions: list[Version] = field(default_factory=list)
    uses: list[tuple[int, Version]] = field(default_factory=list)


def follow(steps: Sequence[Step]) -> DataFlow:
    """Walk through the steps once; memory grows with the names in them, not with their values."""
    flow = DataFlow()
    last: dict[str, Version] = {}
    newest: dict[str, Version] = {}
    # What steps used that ended before the newest version's maker began.
    earlier: dict[str, Version] = {}

    def add(name: str, value: "JSON | Unknown", maker: int | None) -> Version:
        older = last.get(name)
        version = Version(name, older.number + 1 if older else 1, value, maker, older)
        last[name] = version
        flow.versions.append(version)
        return version

    for index, step in enumerate(steps):
        for name, value in _named(step.get("inputs", [])):
            version, known = newest.get(name), newest
            maker = None if version is None else version.maker
            if maker is not None and began(steps[maker]) > ended(step):
                version, known = earlier.get(name), earlier
            if version is None or not _may_be(version, value):
                version = known[name] = add(name, value, None)
            flow.uses.append((index, version))
        for name, value in _named(step.get("outputs", [])):
            newest[name] = add(name, value, index)
    return flow


def _named(side: list[str] | dict[str, JSON]) -> Iterable[tuple[str, "JSON | Unknown"]]:
    if isinstance(side, dict):
        return side.items()
    return ((name, UNKNOWN) for name in dict.fromkeys(side))


def _may_be(version: Version, value: "JSON | Unknown") -> bool:
    """Say whether this value can be the version's; what it is told first, it keeps."""
    if isinstance(value, Unknown):
        return True
    if isinstance(version.value, Unknown):
        version.value = value
        return True
    return canonical_json.dumps(version.value) == canonical_json.dumps(value)


Literal = str | bool | dict[str, str]
Statement = dict[str, Literal]
Members = Iterable[tuple[str, Mapping[str, object]]]


def write(bundle: Bundle, *, sha256: str, base_url: str) -> Iterator[bytes]:
    """Yield a PROV-JSON document in UTF-8, in chunks; the same arguments give the same bytes.

    `sha256` is the hex digest of the bundle's own bytes, `base_url` the service's, without a slash
    at its end.
    """
    return in_chunks(_Document(bundle, sha256, base_url).pieces())


class _Document:
    def __init__(self, bundle: Bundle, sha256: str, base_url: str) -> None:
        self._record = record = bundle["record"]
        self._approvals = bundle.get("approvals", [])
        self._prefixes = _namespaces(base_url, record)
        if self._approvals:
            self._prefixes["approval"] = f"{self._prefixes['record']}bundle#/approvals/"
        self._key_id, self._sha256 = bundle["key_id"], sha256
        self._steps = bundle["steps"]
        self._flow = follow(self._steps)
        self._agent = f"agent:{local_name(record['agent']['id'])}"
        self._session = f"session:{local_name(record['session']['id'])}"

    def pieces(self) -> Iterator[bytes]:
        """Yield the document's JSON, a member or a statement at a time."""
        sections: list[tuple[str, Members]] = [
            ("agent", self._agents()),
            ("activity", self._activities()),
            ("entity", self._entities()),
        ]
        number = count(1)
        for name, statements in self._relations():
            sections.append((name, ((f"_:id{next(number)}", each) for each in statements)))
        yield b'{"prefix":' + compact(self._prefixes)
        for name, members in sections:
            written = (compact(key) + b":" + compact(value) for key, value in members)
            yield from enclosed(f',"{name}":{{'.encode(), written, b"}")
        yield b"}"

    def _relations(self) -> Iterator[tuple[str, Iterable[Statement]]]:
        approvals = [f"approval:{index}" for index in range(len(self._approvals))]
        delegation: Statement = {
            "prov:delegate": self._agent,
            "prov:responsible": _person(self._record["principal"]),
            "prov:activity": self._session,
        }
        yield "actedOnBehalfOf", [delegation]
        yield "wasAssociatedWith", self._associations(approvals)
        yield "wasInformedBy", self._communications()
        yield "used", self._usages()
        yield "wasGeneratedBy", self._generations()
        yield "wasAttributedTo", [{"prov:entity": "record:bundle", "prov:agent": self._agent}]
        yield (
            "wasInfluencedBy",
            ({"prov:influencee": "record:bundle", "prov:influencer": each} for each in approvals),
        )
        yield (
            "alternateOf",
            (
                {"prov:alternate1": _data(each), "prov:alternate2": _data(each.older)}
                for each in self._flow.versions
                if each.older is not None
            ),
        )

    def _agents(self) -> Iterator[tuple[str, Statement]]:
        agent = self._record["agent"]
        statement: Statement = {
            "prov:type": name_literal("prov:SoftwareAgent"),
            "prov:label": agent["name"],
        }
        if "external_id" in agent:
            statement["rs:external_id"] = agent["external_id"]
        if "version" in agent:
            statement["rs:version"] = agent["version"]
        yield self._agent, statement
        approvers = dict.fromkeys(each["approved_by"] for each in self._approvals)
        # A principal may be an organisation; only a person approves.
        for name in dict.fromkeys([self._record["principal"], *approvers]):
            typed = {"prov:type": name_literal("prov:Person")} if name in approvers else {}
            yield _person(name), {**typed, "prov:label": name}

    def _activities(self) -> Iterator[tuple[str, Statement]]:
        session: Statement = {"prov:type": name_literal("rs:Session")}
        if "external_id" in self._record["session"]:
            session["rs:external_id"] = self._record["session"]["external_id"]
        yield self._session, session
        for index, approval in enumerate(self._approvals):
            decided: Statement = {
                "prov:type": name_literal("rs:Approval"),
                "prov:startTime": approval["at"],
                "prov:endTime": approval["at"],
                "rs:decision": approval["decision"],
            }
            if "note" in approval:
                decided["rs:note"] = approval["note"]
            yield f"approval:{index}", decided
        for index, step in enumerate(self._steps):
            activity: Statement = {
                "prov:type": name_literal("rs:Step"),
                "prov:label": step["name"],
                "prov:startTime": step["started_at"],
                **({"prov:endTime": step["ended_at"]} if "ended_at" in step else {}),
                "rs:kind": step["kind"],
                "rs:status": step["status"],
            }
            for name, value in step["attributes"].items():
                activity[_attribute("attribute", name)] = literal(value)
            yield _step(index), activity

    def _entities(self) -> Iterator[tuple[str, Statement]]:
        record = self._record
        bundle: Statement = {
            "prov:type": name_literal("rs:Bundle"),
            "prov:label": record["title"],
            "rs:kind": record["kind"],
            "rs:sha256": self._sha256,
            "rs:key_id": self._key_id,
            "rs:created_at": time_literal(record["created_at"]),
        }
        if record["occurred_at"] is not None:
            bundle["rs:occurred_at"] = time_literal(record["occurred_at"])
        for name, value in record["labels"].items():
            bundle[_attribute("label", name)] = value
        yield "record:bundle", bundle
        for version in self._flow.versions:
            entity: Statement = {"prov:label": version.name}
            if not isinstance(version.value, Unknown):
                entity["prov:value"] = literal(version.value)
            yield _data(version), entity

    def _associations(self, approvals: Sequence[str]) -> Iterator[Statement]:
        yield {"prov:activity": self._session, "prov:agent": self._agent}
        for index in range(len(self._steps)):
            yield {"prov:activity": _step(index), "prov:agent": self._agent}
        for each, approval in zip(approvals, self._approvals, strict=True):
            yield {"prov:activity": each, "prov:agent": _person(approval["approved_by"])}

    def _communications(self) -> Iterator[Statement]:
        by_span = {step["span_id"]: i for i, step in enumerate(self._steps) if "span_id" in step}
        # The last step so far under each parent; under none if the record does not have it.
        last: dict[int | None, int] = {}
        for index, step in enumerate(self._steps):
            parent = by_span.get(step.get("parent_span_id", ""))
            candidates = (last.get(parent), parent if parent != index else None)
            informants = (
                _step(each)
                for each in candidates
                # Nothing that began after a step had ended informed it.
                if each is not None and began(self._steps[each]) <= ended(step)
            )
            yield {
                "prov:informed": _step(index),
                "prov:informant": next(informants, self._session),
            }
            last[parent] = index

    def _usages(self) -> Iterator[Statement]:
        for index, version in self._flow.uses:
            usage: Statement = {"prov:activity": _step(index), "prov:entity": _data(version)}
            start, maker = self._steps[index]["started_at"], version.maker
            # Nothing is used before it is made, so a time of use may not be claimed of that.
            if maker is None or ended(self._steps[maker]) <= began(self._steps[index]):
                usage["prov:time"] = start
            yield usage

    def _generations(self) -> Iterator[Statement]:
        yield {
            "prov:entity": "record:bundle",
            "prov:activity": self._session,
            "prov:time": self._record["created_at"],
        }
        ends = [ended(step) for step in self._steps]
        # Used by a step that ended before its maker did: when it was made is not known.
        early = {
            version
            for index, version in self._flow.uses
            if version.maker is not None and ends[version.maker] > ends[index]
        }
        for version in self._flow.versions:
            if version.maker is not None:
                maker = self._steps[version.maker]
                made: Statement = {
                    "prov:entity": _data(version),
                    "prov:activity": _step(version.maker),
                }
                if version not in early and "ended_at" in maker:
                    made["prov:time"] = maker["ended_at"]
                yield made


def _person(name: str) -> str:
    return f"principal:{local_name(name)}"


def _step(index: int) -> str:
    return f"step:{index}"


def _data(version: Version) -> str:
    # A "/" within a name is encoded, so what follows one can only be a number.
    name = f"data:{local_name(version.name)}"
    return name if version.number == 1 else f"{name}/{version.number}"


def _namespaces(base_url: str, record: Record) -> dict[str, str]:
    """Return the prefixes of one record's document.

    Agents, sessions and the bundle are their own URLs in the service's API, a step is a JSON
    Pointer into the bundle. A principal's name means something within its tenant only, that of an
    input or output only within its record.
    """
    of_record = f"{base_url}/v1/records/{record['id']}/"
    return {
        "rs": f"{base_url}/ns/records#",
        "agent": f"{base_url}/v1/agents/",
        "principal": f"{base_url}/ns/principals/{record['tenant_id']}/",
        "session": f"{base_url}/v1/sessions/",
        "record": of_record,
        "step": f"{of_record}bundle#/steps/",
        "data": f"{of_record}bundle#data/",
        "attribute": f"{base_url}/ns/attributes#",
        "label": f"{base_url}/ns/labels#",
        "rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
    }


def local_name(text: str) -> str:
    """Return the text as the local part of a qualified name (PROV-N, production PN_LOCAL).

    Percent-encoded UTF-8, but for ASCII letters, digits, `_`, `~`, and `-` and `.` inside. No two
    texts share a name, and percent-decoding gives the text back.
    """
    # The grammar has no name that begins with "-" or "." or ends with ".".
    inner = text.strip("-.")
    if not inner:
        return _encoded(text)
    start = text.index(inner[0])
    end = start + len(inner)
    return _encoded(text[:start]) + quote(inner, safe="") + _encoded(text[end:])


def _attribute(prefix: str, name: str) -> str:
    """Return the name of an attribute of a statement, which has a local part whatever its name."""
    return f"{prefix}:{local_name(name)}" if name else f"rs:unnamed_{prefix}"


def _encoded(text: str) -> str:
    return text.replace("-", "%2D").replace(".", "%2E")


def literal(value: JSON) -> Literal:
    """Return a JSON value as PROV-JSON writes it (section 2.2): strings and booleans plain.

    Numbers have their XSD type; null, arrays and objects are canonical JSON, typed `rdf:JSON`.
    """
    if isinstance(value, str | bool):
        return value
    if isinstance(value, int):
        return {"$": str(value), "type": "xsd:integer"}
    if isinstance(value, float):
        return {"$": repr(value), "type": "xsd:double"}
    return {"$": canonical_json.dumps(value).decode("utf-8"), "type": "rdf:JSON"}


def name_literal(qualified_name: str) -> Literal:
    """Return a value that is itself a qualified name, such as a `prov:type`."""
    return {"$": qualified_name, "type": "xsd:QName"}


def time_literal(text: str) -> Literal:
    """Return an RFC 3339 time as an `xsd:dateTime`."""
    return {"$": text, "type": "xsd:dateTime"}
