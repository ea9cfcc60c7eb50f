"""Pages of deliveries: they offer only what sends something, and count a long past."""

import re
from collections import Counter
from html import unescape
from typing import Any

from app.core.delivery import hours
from app.core.delivery.history.delivery_list import MOST_READ
from app.database import Database
from tests.api.deliveries.replays.single import replay
from tests.support.callers.api import ApiOf
from tests.support.callers.console import Visitor, hidden, said
from tests.support.callers.sending import TWO_TRIES, Worker, history, make_findings, make_webhook

LIST, GROUPS, OVERVIEW = "/console/deliveries", "/console/deliveries/groups", "/console/overview"
FAILED = 5_001
REPLAY, BOX = "/console/replays/new", 'name="ids"'


def test_what_a_replay_delivered_is_offered_no_second_sending(
    admin: Visitor, api: ApiOf, webhook: dict[str, Any], path: str, worker: Worker
) -> None:
    make_findings(api(), 2)
    worker.send(webhook, 500)
    rows = history(api(), webhook)
    places = [f"{path}/deliveries/{row['id']}" for row in rows]
    assert admin.get(LIST).text.count(BOX) == 2
    for row, place in zip(rows, places, strict=True):
        assert f'action="{place}/replay"' in admin.get(place).text
        replay(api(), row)
        under_way = admin.get(place).text
        assert "A replay of it is under way" in under_way
        assert f'action="{place}/replay"' not in under_way

    worker.send(webhook, 200)

    for place in places:
        page = admin.get(place).text
        assert "its event has arrived by a replay" in page
        assert f'action="{place}/replay"' not in page
    for page in (admin.get(LIST).text, admin.get(f"{LIST}?status=failed").text):
        assert page.count(">arrived by a replay</a>") == 2
        assert BOX not in page
        assert "Replay what is picked" not in page
        assert "Replay all" not in page
    assert "Nothing fails" in admin.get(GROUPS).text
    assert "All 2 that failed have arrived by a replay since." in said(admin.get(path).text)
    overview = said(admin.get(OVERVIEW).text)
    assert "All 2 that failed have arrived by a replay since." in overview
    assert "not replayed" not in overview


def test_a_finding_leads_to_its_deliveries_and_they_lead_back(
    admin: Visitor, api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    other = make_webhook(api(), event_types=["session.completed"])
    (finding,) = make_findings(api(), 1)
    worker.send(webhook, 500)
    (row,) = history(api(), webhook)
    place = f"/console/findings/{finding['id']}"

    page = admin.get(place).text

    assert f"/console/webhooks/{webhook['id']}/deliveries/{row['id']}" in page
    assert f"/console/webhooks/{other['id']}" in page
    assert "leave this type out" in page
    event = f"/console/events/{row['event_id']}"
    assert event in page
    for led in (event, LIST, f"{LIST}?finding_id={finding['id']}"):
        shown = admin.get(led).text
        assert f'href="{place}"' in shown
        assert row["id"] in shown
    sought = admin.get(f"/console/search?q={row['event_id']}")
    assert sought.headers["Location"].endswith(event)


def test_what_still_retries_is_sent_now_and_not_replayed(
    admin: Visitor, api: ApiOf, webhook: dict[str, Any], path: str, worker: Worker
) -> None:
    make_findings(api(), 3)
    worker.send(webhook, None, TWO_TRIES)
    (group,) = api().get("/v1/deliveries/groups").json["data"]
    now = f'action="{path}/retry-now"'
    pages = {
        name: admin.get(name).text
        for name in (GROUPS, f"{LIST}?group={group['group']}", f"{LIST}?webhook_id={webhook['id']}")
    }
    for name, page in pages.items():
        assert now in page, name
        assert "Replay 3" not in page, name
        assert "Replay this group" not in page, name
    assert 'status=retrying">3</a>' in pages[GROUPS]
    preview = admin.get(f"{REPLAY}?group={group['group']}").text
    assert "Nothing is left to be sent again" in preview
    assert now in preview

    make_findings(api(), 2)
    led = admin.send(path, to=f"{path}/retry-now")

    assert led.status_code == 303
    page = admin.get(led.headers["Location"]).text
    assert "5 deliveries that waited go out now" in page
    assert "Sending of what waits" in page
    api().patch(f"/v1/webhooks/{webhook['id']}", {"held": True})
    assert now not in admin.get(path).text
    assert now not in admin.get(GROUPS).text


def test_a_group_of_both_offers_each_for_its_own(
    admin: Visitor, api: ApiOf, webhook: dict[str, Any], path: str, worker: Worker
) -> None:
    make_findings(api(), 5)
    worker.send(webhook, None, limit=3)
    worker.send(webhook, None, TWO_TRIES)

    page = admin.get(GROUPS).text

    assert ">Replay 3…</a>" in page
    assert 'status=retrying">2</a>' in page
    assert f'action="{path}/retry-now"' in page


def test_the_list_of_replays_says_what_each_took(
    admin: Visitor, api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    make_findings(api(), 1)
    worker.send(webhook, 500)
    (group,) = api().get("/v1/deliveries/groups").json["data"]
    of_one = f"/v1/webhooks/{webhook['id']}/replay"
    for path, wanted, words in (
        (of_one, {}, "failed at Incident room"),
        (
            "/v1/deliveries/replay",
            {"status": ["failed", "cancelled"]},
            "cancelled or failed at every webhook",
        ),
        (of_one, {"group": group["group"]}, "of one cause at Incident room"),
    ):
        assert api().post(path, wanted).status_code == 202
        assert words in said(admin.get("/console/replays").text)


def test_a_stopped_replay_s_page_tells_what_became_of_what_it_sent(
    admin: Visitor, api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    make_findings(api(), 9)
    worker.send(webhook, 400)
    job = api().post(f"/v1/webhooks/{webhook['id']}/replay", {"canary": 5}).json
    worker.finish(job)
    worker.send(webhook, 400, TWO_TRIES)
    worker.count_again(job)
    place = f"/console/replays/{job['id']}"
    stopped = admin.get(place).text
    assert "5 of what was sent wait for an attempt" in said(stopped)
    assert "data-live" in stopped

    worker.make_due()
    worker.send(webhook, 400)

    ended = said(admin.get(place).text)
    assert "wait for an attempt" not in ended
    assert "Failed as before 5" in ended


def test_of_more_failures_than_are_read_each_page_says_so_and_a_replay_takes_all(
    admin: Visitor, api: ApiOf, worker: Worker
) -> None:
    made = make_webhook(api())
    make_findings(api(), 1)
    worker.send(made, 500, error="a")
    worker.copy("failed", FAILED - 1)
    worker.run(f"UPDATE lanes SET events_failed = {FAILED}, next_sequence = {FAILED + 1}")
    in_all = "5,001 of 5,001 events that failed for good have not arrived by a replay. "
    newest = "Of the newest 500, 500 were not replayed, of one cause."
    assert f"{in_all}{newest}" in said(admin.get(OVERVIEW).text)
    groups = admin.get(GROUPS).text
    assert "In all 5,001 events have failed since their webhooks began" in said(groups)
    assert "the newest 3,000 are read" in groups
    assert ">3,000</a>" in groups
    (group,) = api().get("/v1/deliveries/groups").json["data"]
    assert (group["webhook_id"], group["count"]) == (made["id"], FAILED)

    page = admin.get(f"{REPLAY}?webhook_id={made['id']}").text
    assert "<strong>3,000+</strong> events are sent again" in page
    assert "Replay 3,000+ events</button>" in page
    fields = hidden(page, REPLAY)
    assert admin.post(REPLAY, fields).status_code == 303
    (job,) = api().get("/v1/jobs?kind=bulk_replay").json["data"]
    assert job["progress"]["selected"] == FAILED
    assert job["args"]["as_of"] == fields["as_of"]

    # Once the newest have arrived, older ones may still wait.
    replay(api(), api().get("/v1/deliveries?limit=1").json["data"][0])
    worker.send(made, 200)
    groups = admin.get(GROUPS).text
    assert "Nothing fails" not in groups
    assert "older ones are not grouped here" in groups
    overview = admin.get(OVERVIEW).text
    assert "Nothing needs" not in overview
    assert "older ones may wait" in overview


def test_a_list_that_ends_early_leads_on(admin: Visitor, api: ApiOf, worker: Worker) -> None:
    make_webhook(api())
    make_findings(api(), 1)
    worker.copy("pending", MOST_READ)

    page = admin.get("/console/deliveries?status=sending").text
    assert "No delivery fits" not in page
    assert "there are older ones to look through" in page
    assert 'rel="next"' in page


def test_each_bar_leads_to_exactly_what_it_counts(
    admin: Visitor, api: ApiOf, webhook: dict[str, Any], worker: Worker, path: str
) -> None:
    for count, status in ((3, 200), (2, 500)):
        make_findings(api(), count)
        worker.send(webhook, status)
    for page in (OVERVIEW, f"{OVERVIEW}?step=day", path):
        bars = re.findall(
            r'<a href="([^"]*finished_since[^"]*)" tabindex="-1">', admin.get(page).text
        )
        found: Counter[str] = Counter()
        for bar in map(unescape, bars):
            listed = admin.get(bar).text
            counted = re.search(r"(\d+) deliver\w+ (\w+) in that time", said(listed))
            assert counted is not None
            assert listed.count("data-row=") == int(counted[1])
            found[counted[2]] += int(counted[1])
        assert found == {"succeeded": 3, "failed": 2}
    rows = history(api(), webhook)
    ends = {"finished_since": rows[-1]["finished_at"], "finished_until": rows[0]["finished_at"]}
    assert len(api().get("/v1/deliveries", query_string=ends).json["data"]) < 5
    assert api().get("/v1/deliveries", query_string=ends | {"status": "pending"}).json["data"] == []


def test_the_backlog_keeps_the_most_that_waited_in_an_hour(
    admin: Visitor, api: ApiOf, webhook: dict[str, Any], worker: Worker, database: Database
) -> None:
    def most() -> int:
        with database.across_tenants() as session:
            hours.note_backlog(session)
        shown = admin.get(OVERVIEW).text
        return int(re.findall(r"(\d+) waited at once</title>", shown)[-1])

    make_findings(api(), 4)
    assert most() == 4
    worker.send(webhook, 200)
    make_findings(api(), 1)
    assert most() == 4


def test_a_replay_of_a_group_says_why_it_failed_and_an_error_keeps_the_preview(
    admin: Visitor, api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    make_findings(api(), 3)
    worker.send(webhook, 503)
    (group,) = api().get("/v1/deliveries/groups").json["data"]
    place = f"{REPLAY}?group={group['group']}"
    page = said(admin.get(place).text)
    assert "failed at Incident room between" in page
    assert "status 503" in page
    wrong = admin.send(place, {"canary": "101"}, to=REPLAY)
    assert wrong.status_code == 422
    assert "3 events are sent again" in said(wrong.text)
    assert 'id="e-canary"' in wrong.text
    begun = admin.post(REPLAY, hidden(wrong.text, REPLAY) | {"canary": "2"})
    assert begun.status_code == 303
    replayed = begun.headers["Location"]
    worker.finish({"id": replayed.rpartition("/")[2]})
    assert "failed at Incident room , status 503" in said(admin.get(replayed).text)
