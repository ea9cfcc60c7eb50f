"""PROV-JSON by the reference library, by the format's own schema, and by what PROV demands."""

import json
import re
import warnings
from collections import Counter
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import unquote

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prov.model import ProvDocument

from app.evidence import prov
from app.evidence.bundle import Bundle, read
from app.evidence.prov import local_name
from app.evidence.times import unix_nanoseconds
from tests.unit.evidence import records
from tests.unit.evidence.records import AGENT, BASE_URL, RECORD, SHA256, golden, made_of, step


def document(bundle: Bundle) -> Any:
    def once(members: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(members)) == len(members), "a name twice in one object"
        return dict(members)

    return json.loads(written(bundle), object_pairs_hook=once)


def written(bundle: Bundle) -> bytes:
    return b"".join(prov.write(bundle, sha256=SHA256, base_url=BASE_URL))


def loaded(raw: bytes | str) -> ProvDocument:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return ProvDocument.deserialize(content=raw, format="json")


@cache
def schema() -> jsonschema_rs.Draft4Validator:
    text = files("prov").joinpath("tests/schemas/prov-json.schema.json").read_text()
    return jsonschema_rs.Draft4Validator(json.loads(text), validate_formats=False)


def with_moments(value: Any, name: str = "") -> Any:
    """Replace each time by its moment: the reference writes `Z` as `+00:00`."""
    if isinstance(value, dict):
        if value.get("type") == "xsd:dateTime":
            return {**value, "$": datetime.fromisoformat(value["$"])}
        return {key: with_moments(item, key) for key, item in value.items()}
    if name in ("prov:time", "prov:startTime", "prov:endTime"):
        return datetime.fromisoformat(value)
    return value


def test_a_record_s_bytes_never_change() -> None:
    assert written(read(golden("bundle.json"), AGENT)) == golden("prov.json")


@given(records.bundles)
@settings(max_examples=40)
def test_every_record_passes_the_schema_and_comes_back_from_the_reference_as_it_was(
    bundle: Bundle,
) -> None:
    schema().validate(document(bundle))
    first = loaded(written(bundle))
    again = first.serialize(format="json")
    assert again is not None
    assert with_moments(json.loads(again)) == with_moments(document(bundle))
    assert loaded(again) == first


@given(records.bundles)
@settings(max_examples=40)
def test_every_record_keeps_the_constraints_of_prov(bundle: Bundle) -> None:
    made = document(bundle)
    whatever_is = made["agent"] | made["activity"] | made["entity"]
    relations = [each for name in RELATIONS for each in made.get(name, {}).values()]
    for relation in relations:
        for role, value in relation.items():
            assert role == "prov:time" or value in whatever_is

    generated = {each["prov:entity"]: each for each in made["wasGeneratedBy"].values()}
    assert len(generated) == len(made["wasGeneratedBy"]), "an entity was generated twice"
    uses = made.get("used", {}).values()
    if all(_lasts(each) for each in made["activity"].values()):
        _check_order(made)
    pairs = Counter((each["prov:activity"], each["prov:entity"]) for each in uses)
    assert all(times == 1 for times in pairs.values())
    for place, each in enumerate(bundle["steps"]):
        activity = made["activity"][f"step:{place}"]
        assert activity["prov:startTime"] == each["started_at"]
        assert activity.get("prov:endTime") == each.get("ended_at")


def _lasts(activity: Any) -> bool:
    """Say whether an activity ends when it starts or later, as the API demands of steps."""
    start, end = (activity.get(f"prov:{name}Time") for name in ("start", "end"))
    return None in (start, end) or unix_nanoseconds(start) <= unix_nanoseconds(end)


def _check_order(made: Any) -> None:
    """Hold a document to PROV-CONSTRAINTS, section 6.2, as far as we make such statements."""
    infinite = 1 << 200

    def bounds(activity: str, time: str | None = None) -> tuple[int, int]:
        """Between when and when something in an activity happened."""
        told = made["activity"][activity]
        start = unix_nanoseconds(told["prov:startTime"]) if "prov:startTime" in told else -infinite
        end = unix_nanoseconds(told["prov:endTime"]) if "prov:endTime" in told else infinite
        at = None if time is None else unix_nanoseconds(time)
        assert at is None or start <= at <= end, "an event outside its activity"
        return (start, end) if at is None else (at, at)

    made_between = {}
    for each in made["wasGeneratedBy"].values():
        made_between[each["prov:entity"]] = bounds(each["prov:activity"], each.get("prov:time"))
    for each in made.get("used", {}).values():
        _, until = bounds(each["prov:activity"], each.get("prov:time"))
        first, _ = made_between.get(each["prov:entity"], (-infinite, None))
        assert first <= until, "an entity was used before it was generated"
    for each in made.get("wasInformedBy", {}).values():
        first, _ = bounds(each["prov:informant"])
        _, until = bounds(each["prov:informed"])
        assert first <= until, "a step was informed by what began after it had ended"


RELATIONS = [
    "wasAttributedTo",
    "wasInfluencedBy",
    "actedOnBehalfOf",
    "wasAssociatedWith",
    "wasInformedBy",
    "used",
    "wasGeneratedBy",
    "alternateOf",
]

# The grammar's PN_LOCAL for what we let through: https://www.w3.org/TR/prov-n/#grammar-notation
FIRST = r"(?:[A-Za-z0-9_~]|%[0-9A-F]{2})"
INNER = r"(?:[A-Za-z0-9_~.-]|%[0-9A-F]{2})"
LAST = r"(?:[A-Za-z0-9_~-]|%[0-9A-F]{2})"
LEGAL = re.compile(f"{FIRST}(?:{INNER}*{LAST})?")


@given(st.text(records.characters) | st.text(".-a%/", max_size=6))
@settings(max_examples=200)
def test_any_text_makes_a_legal_local_name_that_gives_it_back(text: str) -> None:
    name = local_name(text)
    assert unquote(name, errors="strict") == text
    # Nothing at all is a legal local part, too (production QUALIFIED_NAME).
    assert LEGAL.fullmatch(name) or not text


def flow(made: Any) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    pairs = [
        {(each["prov:activity"], each["prov:entity"]) for each in made.get(name, {}).values()}
        for name in ("used", "wasGeneratedBy")
    ]
    return pairs[0], {pair for pair in pairs[1] if pair[1] != "record:bundle"}


def test_what_is_made_anew_under_an_old_name_is_another_entity() -> None:
    made = document(
        made_of(
            step("a", inputs=["draft"], outputs=["draft"]),
            step("b", inputs=["draft"], outputs=["draft"]),
        )
    )
    assert flow(made) == (
        {("step:0", "data:draft"), ("step:1", "data:draft/2")},
        {("step:0", "data:draft/2"), ("step:1", "data:draft/3")},
    )
    assert list(made["alternateOf"].values()) == [
        {"prov:alternate1": "data:draft/2", "prov:alternate2": "data:draft"},
        {"prov:alternate1": "data:draft/3", "prov:alternate2": "data:draft/2"},
    ]


def test_a_name_that_looks_like_a_second_version_is_none() -> None:
    made = document(made_of(step("a", inputs=["draft/2"], outputs=["draft", "draft/2"])))
    assert made["entity"].keys() == {
        "record:bundle",
        "data:draft%2F2",
        "data:draft",
        "data:draft%2F2/2",
    }


def test_a_value_that_changed_on_the_way_is_another_entity() -> None:
    made = document(
        made_of(
            step("a", outputs={"limit": 1}),
            step("b", inputs={"limit": 1}),
            step("c", inputs={"limit": True}),
            step("d", inputs=["limit"]),
        )
    )
    assert made["entity"]["data:limit"]["prov:value"] == {"$": "1", "type": "xsd:integer"}
    assert made["entity"]["data:limit/2"]["prov:value"] is True
    assert flow(made) == (
        {("step:1", "data:limit"), ("step:2", "data:limit/2"), ("step:3", "data:limit/2")},
        {("step:0", "data:limit")},
    )


def test_a_value_told_later_belongs_to_what_was_only_named() -> None:
    made = document(made_of(step("a", outputs=["x"]), step("b", inputs={"x": [1, {"b": None}]})))
    assert made["entity"]["data:x"]["prov:value"] == {"$": '[1,{"b":null}]', "type": "rdf:JSON"}
    assert "data:x/2" not in made["entity"]


def test_nothing_is_said_to_be_used_before_it_was_made() -> None:
    early = "2026-01-31T11:59:59.000000Z"
    made = document(
        made_of(
            step("a", outputs=["x"]),
            step("b", inputs=["x"], started_at=early),
            step("c", inputs=["x"], started_at="2026-01-31T15:30:01+03:30"),
        )
    )
    one, other = made["used"].values()
    assert "prov:time" not in one
    assert other["prov:time"] == "2026-01-31T15:30:01+03:30"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", ""),
        (False, False),
        (0, {"$": "0", "type": "xsd:integer"}),
        (-(2**53 - 1), {"$": "-9007199254740991", "type": "xsd:integer"}),
        (0.1, {"$": "0.1", "type": "xsd:double"}),
        (1e300, {"$": "1e+300", "type": "xsd:double"}),
        (None, {"$": "null", "type": "rdf:JSON"}),
        ([], {"$": "[]", "type": "rdf:JSON"}),
        ({"b": 1, "a": 2}, {"$": '{"a":2,"b":1}', "type": "rdf:JSON"}),
    ],
)
def test_attributes_keep_their_types(value: Any, expected: Any) -> None:
    made = document(made_of(step("a", attributes={"gen_ai.x y": value})))
    assert made["activity"]["step:0"]["attribute:gen_ai.x%20y"] == expected


def backwards() -> Bundle:
    """Two steps, the second of which ended before the first began; a third between both ends."""
    return made_of(
        step("a", outputs=["x"], started_at=_at(10), ended_at=_at(20)),
        step("b", inputs=["x"], started_at=_at(1), ended_at=_at(2)),
        step("c", inputs=["x"], started_at=_at(3), ended_at=_at(15)),
        step("d", inputs=["x"], started_at=_at(30), ended_at=_at(40)),
    )


def _at(second: int) -> str:
    return f"2026-01-31T12:00:{second:02}Z"


def test_steps_that_overlap_backwards_keep_the_order_of_events() -> None:
    made = document(backwards())
    _check_order(made)
    session = f"session:{RECORD['session']['id']}"
    assert [each["prov:informant"] for each in made["wasInformedBy"].values()] == [
        session,
        session,
        "step:1",
        "step:2",
    ]
    assert flow(made) == (
        {("step:1", "data:x/2"), ("step:2", "data:x"), ("step:3", "data:x")},
        {("step:0", "data:x")},
    )
    # The third used it before its maker had ended: by when it was there, nobody says.
    (made_by,) = (e for e in made["wasGeneratedBy"].values() if e["prov:entity"] == "data:x")
    assert "prov:time" not in made_by
    schema().validate(made)


def test_an_attribute_without_a_name_has_one_here() -> None:
    made = document(made_of(step("a", attributes={"": 1, "unnamed": 2})))
    activity = made["activity"]["step:0"]
    assert activity["rs:unnamed_attribute"] == {"$": "1", "type": "xsd:integer"}
    assert activity["attribute:unnamed"] == {"$": "2", "type": "xsd:integer"}
    assert "attribute:" not in activity


def test_who_acted_for_whom_and_which_persons_approved_is_said_in_prov_s_own_terms() -> None:
    approvals = [
        {"approved_by": name, "at": "2026-01-31T12:00:00.000000Z", "decision": "approved"}
        for name in ("erin@example.com", "max@example.com")
    ]
    made = document(made_of(approvals=approvals))
    agent = f"agent:{RECORD['agent']['id']}"
    (delegation,) = made["actedOnBehalfOf"].values()
    assert delegation["prov:delegate"] == agent
    assert made["agent"][delegation["prov:responsible"]]["prov:label"] == RECORD["principal"]
    (attribution,) = made["wasAttributedTo"].values()
    assert attribution == {"prov:entity": "record:bundle", "prov:agent": agent}
    persons = [
        each["prov:label"]
        for each in made["agent"].values()
        if each.get("prov:type") == {"$": "prov:Person", "type": "xsd:QName"}
    ]
    assert persons == ["erin@example.com", "max@example.com"]
    assert [each["prov:influencer"] for each in made["wasInfluencedBy"].values()] == [
        "approval:0",
        "approval:1",
    ]
    text = loaded(json.dumps(made)).get_provn()
    assert "wasAttributedTo(record:bundle, agent:" in text
    assert "wasInfluencedBy(record:bundle, approval:0" in text
