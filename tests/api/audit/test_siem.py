"""docs/siem.md: its event is one that is answered, and its snippets fit that event."""

import configparser
import json
import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.api.audit.chains import NDJSON
from tests.support.callers.api import ApiOf

PAGE = (Path(__file__).parents[3] / "docs" / "siem.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def events(api: ApiOf) -> list[bytes]:
    api().patch("/v1/tenant/settings", {"bundle_retention_days": 3})
    lines: list[bytes] = api().get("/v1/audit?layout=events", headers=NDJSON).data.splitlines()
    return lines


def test_the_event_shown_has_the_members_of_an_event_in_their_order(events: list[bytes]) -> None:
    (shown,) = blocks("json")
    assert list(json.loads(shown)) == list(json.loads(events[0]))
    assert isinstance(json.loads(json.loads(shown)["details"]), dict)


def test_every_member_of_an_event_is_mapped_to_ocsf(events: list[bytes]) -> None:
    table = PAGE.partition("## OCSF")[2].partition("\n\n`severity_id`")[0]
    cells = re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE)
    named = [name for cell in cells for name in re.findall(r"`(\w+)`", cell.partition(" (")[0])]
    of_people = {"actor_name", "actor_email", "actor_issuer", "actor_subject"}
    assert sorted(named) == sorted({*json.loads(events[0])} | of_people)


def test_splunk_finds_the_time_where_it_is_told_to(events: list[bytes]) -> None:
    stanza = configparser.RawConfigParser()
    stanza.optionxform = str  # type: ignore[assignment,method-assign]  # as configparser says
    stanza.read_string(blocks("ini")[0])
    told = dict(stanza["record_service:audit"])
    for line in map(bytes.decode, events):
        begin = re.match(told["TIME_PREFIX"], line)
        assert begin is not None
        text = line[begin.end() : begin.end() + int(told["MAX_TIMESTAMP_LOOKAHEAD"])]
        form = told["TIME_FORMAT"].replace("%6N", "%f").replace("%Z", "%z")
        assert datetime.strptime(text, form).utcoffset() == timedelta(0)  # noqa: DTZ007  # %z is in it
    pieces = re.split(told["LINE_BREAKER"], "\n".join(line.decode() for line in events))
    assert len(pieces[::2]) == len(events)


def go_layout(layout: str) -> str:
    """Return a layout of Go's as one of Python's: what is there is all that the page uses."""
    for go, python in (
        ("2006", "%Y"), ("01", "%m"), ("02", "%d"), ("15", "%H"), ("04", "%M"), ("05", "%S"),
        ("999999", "%f"),
    ):  # fmt: skip
        layout = layout.replace(go, python, 1)
    return layout


def member(event: dict[str, Any], path: str, root: str) -> Any:
    assert path.startswith(f"{root}.")
    return event[path.removeprefix(f"{root}.")]


def test_filebeat_and_the_collector_read_what_is_there(events: list[bytes]) -> None:
    beat, collector = map(yaml.safe_load, blocks("yaml"))
    drop, stamp, known = beat["processors"]
    (parser,) = collector["receivers"]["filelog"]["operators"]
    entries, trailer = [json.loads(line) for line in events[:-1]], json.loads(events[-1])
    ((path, value),) = drop["drop_event"]["when"]["equals"].items()
    assert member(trailer, path, "record_service") == value
    for event in entries:
        assert member(event, path, "record_service") != value
        for field, root, layout in (
            (stamp["timestamp"]["field"], "record_service", stamp["timestamp"]["layouts"][0]),
            (parser["timestamp"]["parse_from"], "attributes", parser["timestamp"]["layout"]),
        ):
            datetime.strptime(member(event, field, root), go_layout(layout))  # noqa: DTZ007  # only read
        for field in known["fingerprint"]["fields"]:
            assert member(event, field, "record_service")
        outcome = member(event, parser["severity"]["parse_from"], "attributes")
        assert outcome in parser["severity"]["mapping"].values()
    for pipeline in collector["service"]["pipelines"].values():
        assert set(pipeline["receivers"]) <= set(collector["receivers"])
        assert set(pipeline["exporters"]) <= set(collector["exporters"])
