"""Forms that are sent twice, too late, or from an old page: each is safe and says so."""

import re
from collections import Counter
from typing import Any

from app import ids
from app.core.jobs import job_queue, leases, steps
from app.database import Database
from tests.support.callers.api import Api, ApiOf, FreshTenant
from tests.support.callers.console import Visitor, hidden
from tests.support.callers.making import make_record, make_session
from tests.support.callers.sending import (
    TWO_TRIES,
    Worker,
    history,
    make_findings,
    make_webhook,
)

TWICE = "This form was sent twice, and done once."
SIGN_OUT, SETTINGS, NEW = "/console/sign-out", "/console/settings", "/console/replays/new"


class Twice:
    """Sends each form of a page twice, and says what that has done."""

    def __init__(self, visitor: Visitor, api: Api) -> None:
        self.visitor = visitor
        self.api = api
        self.answer: Any = None

    def effects(self) -> Counter[str]:
        """Count what a tenant has: deliveries, jobs, and entries of its audit chain by action."""
        entries = self.api.get("/v1/audit?limit=200").json["data"]
        found = Counter(each["action"] for each in entries)
        for name in ("deliveries", "jobs"):
            found[name] = len(self.api.get(f"/v1/{name}?limit=200").json["data"])
        return found

    def __call__(self, page: str, action: str, **typed: str) -> dict[str, int]:
        before = self.effects()
        shown = self.visitor.form(page, action)
        # Several forms lead to a webhook's address: what is typed stands for one of them.
        own = {name: value for name, value in shown.items() if name.startswith("_")}
        fields = {**own, **typed} if typed else shown
        first, self.answer = (self.visitor.post(action, fields) for _ in range(2))
        assert first.status_code == self.answer.status_code
        place = self.answer.headers.get("Location")
        assert place == first.headers.get("Location")
        led = self.visitor.get(place) if place else self.answer
        assert TWICE in led.text, action
        return dict(self.effects() - before)


def test_each_form_of_a_webhook_is_done_once(admin: Visitor, api: ApiOf, path: str) -> None:
    twice = Twice(admin, api())
    for act, typed, done in (
        ("/test", {}, {"deliveries": 1}),
        ("/check", {}, {"jobs": 1}),
        ("/retry-now", {}, {"jobs": 1, "deliveries.retry_now": 1}),
        ("", {"held": "true"}, {"webhook.hold": 1}),
        ("", {"held": "false"}, {"webhook.release": 1}),
        ("", {"status": "disabled"}, {"webhook.disable": 1}),
        ("", {"status": "enabled"}, {"webhook.enable": 1}),
        ("", {"description": "Room"}, {"webhook.update": 1}),
        ("/rotate-secret", {"overlap_seconds": "60"}, {"webhook.rotate_secret": 1}),
        ("/delete", {"name": "Room"}, {"webhook.delete": 1}),
    ):
        assert twice(path, f"{path}{act}", **typed) == done, (act, typed)


def test_each_form_of_deliveries_and_jobs_is_done_once(
    admin: Visitor, api: ApiOf, worker: Worker, database: Database, tenant: FreshTenant
) -> None:
    twice, webhook = Twice(admin, api()), make_webhook(api())
    make_findings(api(), 3)
    worker.send(webhook, 500, limit=2)
    worker.send(webhook, 500, TWO_TRIES)
    place = f"/console/webhooks/{webhook['id']}/deliveries"
    for status, act, done in (
        ("retrying", "retry-now", {"delivery.retry_now": 1}),
        ("failed", "replay", {"deliveries": 1, "delivery.replay": 1}),
    ):
        delivery = f"{place}/{history(api(), webhook, f'status={status}')[0]['id']}"
        assert twice(delivery, f"{delivery}/{act}") == done
    assert twice(NEW, NEW) == {"jobs": 1, "deliveries.replay": 1}
    replay = twice.answer.headers["Location"]
    assert twice(replay, f"{replay}/cancel") == {"job.cancel": 1}
    assert twice(replay, f"{replay}/resume") == {"job.resume": 1}
    with database.transaction(tenant.id) as session:
        job = job_queue.enqueue(session, tenant.id, kind="evidence_pack", args={})
    with database.transaction(tenant.id) as session:
        claimed = leases.claim(session, tenant.id, job.id)
        assert claimed is not None
        assert steps.fail(session, claimed, "The disk is full.", for_good=True)
    dead = f"/console/jobs/{ids.text('job', job.id)}"
    assert twice(dead, f"{dead}/retry") == {"job.retry": 1}


def test_each_form_of_keys_and_records_is_done_once(admin: Visitor, api: ApiOf) -> None:
    twice, keys = Twice(admin, api()), "/console/keys"
    assert twice(keys, keys, name="auditor", role="read") == {"key.mint": 1}
    key = f"{keys}/{api().get('/v1/keys').json['data'][0]['id']}"
    assert twice(key, f"{key}/revoke") == {"key.revoke": 1}
    record = f"/console/records/{make_record(api(), make_session(api())['id'])['id']}"
    links = f"{record}/share-links"
    assert twice(record, links, expires_in_seconds="3600") == {"share_link.create": 1}
    (revoke,) = re.findall(rf'action="({links}/[^"]+/revoke)"', admin.get(record).text)
    assert twice(record, revoke) == {"share_link.revoke": 1}


def test_a_form_sent_twice_says_so_and_not_what_is_true_no_more(admin: Visitor, path: str) -> None:
    hold = {**admin.form(path), "held": "true"}
    admin.post(path, hold)
    assert "The webhook is held" in admin.get(path).text
    admin.send(path, {"held": "false"})
    assert "The webhook is released" in admin.get(path).text
    admin.post(path, hold)
    page = admin.get(path).text
    assert TWICE in page
    assert "The webhook is held" not in page
    assert TWICE not in admin.get(path).text


def test_settings_confirmed_twice_were_changed(admin: Visitor) -> None:
    asked = admin.send(SETTINGS, {"bundle_visibility": "public"})
    sure = hidden(asked.text, SETTINGS)
    said = []
    for _ in range(2):
        assert admin.post(SETTINGS, sure).status_code == 303
        said += re.findall(r'class="said" role="status">([^<]+)<', admin.get(SETTINGS).text)
    assert said == ["The settings were changed.", TWICE]


def test_signing_out_twice_or_by_an_old_page_signs_out(admin: Visitor, tenant: FreshTenant) -> None:
    old = admin.form(SETTINGS, SIGN_OUT)
    admin.sign_in(tenant.root_key)
    for _ in range(2):
        answer = admin.post(SIGN_OUT, old)
        assert answer.status_code == 303
        assert answer.headers["Location"] == "/console/sign-in"
        assert admin.get(SETTINGS).status_code == 303


def test_another_site_ends_no_session(admin: Visitor) -> None:
    fields = admin.form(SETTINGS, SIGN_OUT)
    assert admin.post(SIGN_OUT, fields, **{"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert admin.get(SETTINGS).status_code == 200


def test_a_count_asked_for_without_a_session_starts_no_replay_afterwards(
    admin: Visitor,
    tenant: FreshTenant,
    webhook: dict[str, Any],
    api: ApiOf,
    worker: Worker,
) -> None:
    make_findings(api(), 2)
    assert worker.send(webhook, 500) == 2
    (count,) = re.findall(r'formaction="([^"]+)"', admin.get(NEW).text)
    typed = {**admin.form(NEW), "rate": "7"}
    admin.post(SIGN_OUT, {})
    asked = admin.post(count, typed)
    again = admin.sign_in(tenant.root_key, **hidden(asked.text, "/console/sign-in"))
    fields = {**hidden(again.text, count), "rate": "7"}
    shown = admin.post(count, fields)
    assert "Replay 2 events" in shown.text
    assert 'name="rate" type="text" value="7"' in shown.text
    assert api().get("/v1/jobs").json["data"] == []


def test_a_form_that_clears_a_field_clears_it_after_signing_in_again(
    admin: Visitor, tenant: FreshTenant, path: str, webhook: dict[str, Any], api: ApiOf
) -> None:
    form = admin.form(path, f"{path}/retry-now")
    fields = {**form, "url": webhook["url"], "description": ""}
    admin.post(SIGN_OUT, {})
    asked = admin.post(path, fields)
    again = admin.sign_in(tenant.root_key, **hidden(asked.text, "/console/sign-in"))
    shown = dict(re.findall(r'<input id="kept-\d+" name="([^"]+)" value="([^"]*)">', again.text))
    assert shown == {"url": webhook["url"], "description": ""}
    assert admin.post(path, {**hidden(again.text, path), **shown}).status_code == 303
    assert api().get(f"/v1/webhooks/{webhook['id']}").json["description"] is None


def test_the_address_of_a_form_leads_to_its_page(admin: Visitor, api: ApiOf, path: str) -> None:
    record = f"/console/records/{make_record(api(), make_session(api())['id'])['id']}"
    for address, page in (
        (f"{path}/rotate-secret", path),
        (f"{record}/share-links", record),
        (f"{record}/share-links/shr_x/revoke", record),
        ("/console/audit/verify", "/console/audit"),
        (f"{NEW}/count", NEW),
        (SIGN_OUT, "/console"),
    ):
        led = admin.get(address)
        assert (led.status_code, led.headers.get("Location")) == (303, page), address
    assert admin.get("/console/nothing/verify").status_code == 404


def test_a_form_that_comes_too_late_leads_back_to_its_page(
    admin: Visitor, api: ApiOf, path: str, webhook: dict[str, Any]
) -> None:
    fields = admin.form(path, f"{path}/test")
    disabled = api().patch(f"/v1/webhooks/{webhook['id']}", {"status": "disabled"})
    assert disabled.status_code == 200
    late = admin.post(f"{path}/test", fields)
    assert late.status_code == 409
    assert f'<a href="{path}">Back to its page</a>' in late.text


def test_enabling_offers_what_was_skipped_and_only_if_something_was(
    admin: Visitor, api: ApiOf, webhook: dict[str, Any], path: str
) -> None:
    def turn(status: str) -> str:
        answer = admin.send(path, {"status": status})
        assert answer.status_code == 303
        return str(answer.headers["Location"])

    turn("disabled")
    assert turn("enabled") == path
    assert "Nothing was left out meanwhile" in admin.get(path).text
    turn("disabled")
    make_findings(api(), 2)
    offered = turn("enabled")
    assert offered == f"/console/replays/new?webhook_id={webhook['id']}&status=skipped"
    page = admin.get(offered).text
    assert "The webhook is enabled" in page
    assert "Replay 2 events" in page


def test_an_error_stands_under_no_success(admin: Visitor, path: str) -> None:
    form = admin.form(path, path)
    assert admin.post(path, {**form, "held": "true"}).status_code == 303
    # The page with the success was never opened: another form went first.
    wrong = admin.post(path, {**form, "_key": "other", "max_in_flight": "0"})
    assert wrong.status_code == 422
    assert 'class="said"' not in wrong.text
    assert "The webhook is held" not in wrong.text
    assert 'class="said"' not in admin.get(path).text
