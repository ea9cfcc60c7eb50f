"""Forms that are sent twice, too late, or from an old page: each is safe and says so."""

import re
from typing import Any

from tests.support.callers.api import ApiOf, FreshTenant
from tests.support.callers.console import Visitor, hidden
from tests.support.callers.making import make_record, make_session
from tests.support.callers.sending import Worker, make_findings

TWICE = "This form was sent twice, and done once."
SIGN_OUT, SETTINGS, NEW = "/console/sign-out", "/console/settings", "/console/replays/new"


def test_a_form_sent_twice_says_so_and_not_what_is_true_no_more(admin: Visitor, path: str) -> None:
    hold = {**admin.form(path), "held": "true"}
    admin.post(path, hold)
    assert "The webhook is held" in admin.get(path).text
    admin.post(path, {**admin.form(path), "held": "false"})
    assert "The webhook is released" in admin.get(path).text
    admin.post(path, hold)
    page = admin.get(path).text
    assert TWICE in page
    assert "The webhook is held" not in page
    assert TWICE not in admin.get(path).text


def test_a_page_that_shows_a_secret_says_that_its_form_came_twice(admin: Visitor) -> None:
    typed = {**admin.form("/console/keys"), "name": "n", "role": "read"}
    first, again = (admin.post("/console/keys", typed).text for _ in range(2))
    assert TWICE not in first
    assert TWICE in again


def test_settings_confirmed_twice_were_changed(admin: Visitor) -> None:
    asked = admin.post(SETTINGS, {**admin.form(SETTINGS), "bundle_visibility": "public"})
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
