"""Terms of our PROV documents: namespaces, local names for any text, typed values."""

from urllib.parse import quote

from app.evidence.bundle import Record
from app.lib import canonical_json
from app.lib.canonical_json import JSON

Literal = str | bool | dict[str, str]


def namespaces(base_url: str, record: Record) -> dict[str, str]:
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


def attribute_name(prefix: str, name: str) -> str:
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
