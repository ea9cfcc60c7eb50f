"""The reader's time zone: chosen once, for times, filters and the days of charts; UTC without."""

from datetime import UTC, datetime, timedelta

import pytest
import time_machine
from flask import Flask

from app.console.frame import zone
from app.core.delivery.hours import Step, span
from tests.support.callers.api import ApiOf
from tests.support.callers.console import Visitor, rows
from tests.support.callers.making import make_record, make_session

CHOICE = "/console/time-zone"
RECORDS = "/console/records"
KOLKATA = "Asia/Kolkata"


def live_in(visitor: Visitor, name: str, back_to: str = RECORDS) -> None:
    """Choose a zone on a page."""
    chosen = visitor.send(CHOICE, {"zone": name, "next": back_to})
    assert (chosen.status_code, chosen.headers["Location"]) == (303, back_to), chosen.text


def test_times_are_in_utc_until_the_reader_chooses_a_zone_and_again_by_one_button(
    admin: Visitor, api: ApiOf
) -> None:
    record = make_record(api(), make_session(api())["id"], occurred_at="2026-01-31T20:00:00Z")
    path = f"{RECORDS}/{record['id']}"
    assert "31 Jan 2026, 20:00:00 UTC" in admin.get(path).text
    live_in(admin, KOLKATA, path)
    page = admin.get(path).text
    assert "1 Feb 2026, 01:30:00 IST" in page
    assert 'title="2026-01-31 20:00:00.000 UTC"' in page
    assert "Times are in Asia/Kolkata." in page
    assert '<button class="link" name="zone" value="UTC">UTC</button>' in page
    live_in(admin, "UTC", path)
    assert "31 Jan 2026, 20:00:00 UTC" in admin.get(path).text
    live_in(admin, "UTC", f"{RECORDS}?q={'a' * 2000}")


def test_a_zone_that_is_none_is_refused_and_a_cookie_that_names_none_is_utc(
    admin: Visitor,
) -> None:
    refused = admin.send(CHOICE, {"zone": "../etc/passwd"})
    assert refused.status_code == 422
    assert "There is no such time zone." in refused.text
    admin.client.set_cookie("console_zone", "../../etc/passwd", domain="records.test")
    admin.client.set_cookie("__Host-console_zone", "Mars/Olympus", domain="records.test")
    assert "Times are in UTC." in admin.get(RECORDS).text
    elsewhere = {**admin.form(CHOICE), "zone": "UTC", "next": "//evil.example"}
    assert admin.post(CHOICE, elsewhere).headers["Location"] == "/console"


def test_a_filter_is_read_in_the_reader_s_zone_and_its_url_means_the_same_to_every_reader(
    admin: Visitor, api: ApiOf
) -> None:
    session = make_session(api())["id"]
    early, late = (
        make_record(api(), session, occurred_at=f"2026-01-31T{hour}:00:00Z") for hour in (19, 20)
    )
    live_in(admin, KOLKATA)
    # 01:00 there is 19:30 in UTC.
    led = admin.get(f"{RECORDS}?occurred_since=2026-02-01T01:00&q=")
    assert led.status_code == 303
    exact = led.headers["Location"]
    assert "occurred_since=2026-01-31T19%3A30%3A00.000000Z" in exact
    page = admin.get(exact).text
    assert rows(page) == [late["id"]]
    assert 'value="2026-02-01T01:00:00"' in page
    live_in(admin, "UTC")
    page = admin.get(exact).text
    assert rows(page) == [late["id"]]
    assert 'value="2026-01-31T19:30:00"' in page
    assert "occurred since: <bdi>31 Jan 2026, 19:30:00 UTC</bdi>" in page
    assert rows(admin.get(f"{RECORDS}?occurred_until=2026-01-31T19:30").text) == []
    led = admin.get(f"{RECORDS}?occurred_until=2026-01-31T19:30")
    assert rows(admin.get(led.headers["Location"]).text) == [early["id"]]


@pytest.mark.parametrize(
    ("typed", "moment"),
    [
        ("2026-07-01T00:30", "2026-06-30T22:30:00.000000Z"),
        # Such an hour is not there, and such a one comes twice: the first is meant.
        ("2026-03-29T02:30", "2026-03-29T01:30:00.000000Z"),
        ("2026-10-25T02:30:01", "2026-10-25T00:30:01.000000Z"),
        ("0001-01-01T00:00", "0001-01-01T00:00"),
        ("2026-13-01T00:00", "2026-13-01T00:00"),
        ("2026-07-01T00:30:00Z", "2026-07-01T00:30:00Z"),
    ],
)
def test_what_a_control_sends_is_read_where_the_reader_is(
    app: Flask, typed: str, moment: str
) -> None:
    with app.test_request_context(headers={"Cookie": "__Host-console_zone=Europe/Paris"}):
        assert zone.exact(typed) == moment


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s ago"),
        (59.9, "59 s ago"),
        (-30, "in 30 s"),
        (60, "1 min ago"),
        (3_599, "59 min ago"),
        (-7_200, "in 2 h"),
        (86_400 * 7 - 1, "6 d ago"),
        (86_400 * 7, "24 Jan 2026"),
    ],
)
def test_a_row_says_how_long_ago_it_was(app: Flask, seconds: float, said: str) -> None:
    now = datetime(2026, 1, 31, 12, tzinfo=UTC)
    with app.test_request_context(), time_machine.travel(now, tick=False):
        assert zone.ago(now - timedelta(seconds=seconds)) == said


def test_days_of_a_chart_are_the_reader_s_also_where_one_has_23_hours(app: Flask) -> None:
    now = datetime(2026, 3, 30, 12, tzinfo=UTC)
    with app.test_request_context(headers={"Cookie": "__Host-console_zone=Europe/Paris"}):
        found = span(now, datetime(2026, 3, 28, 12, tzinfo=UTC), None, Step.DAY, zone.chosen())
        assert [f"{each:%d %H}" for each in found.starts] == ["27 23", "28 23", "29 22"]
        assert f"{found.until:%d %H}" == "30 22"
        assert len(span(now, None, None, Step.DAY, zone.chosen()).starts) == 30
