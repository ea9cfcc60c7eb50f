"""The operator's view over tenants: who gets in, what is shown, suspend and resume."""

import re
from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from flask import Flask
from playwright.sync_api import Browser
from sqlalchemy import Engine, text

from app import ids
from app.core.delivery.lanes import lanes
from app.core.health import tenant_figures
from app.core.health.tenant_figures import Sort
from app.database import Database
from app.manage.commands import main
from tests.e2e.harness.web import Web
from tests.support.callers.api import ApiOf, FreshTenant
from tests.support.callers.console import Visitor
from tests.support.callers.sending import Worker, make_findings, make_webhook

PAGE = "/console/operator"


@pytest.fixture
def key(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[str]:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert main(["console-key", "--name", "Ops on call"]) == 0
    found = re.search(r"opk_\S+", capsys.readouterr().out)
    assert found is not None
    yield found[0]
    assert main(["console-key", "--end-all"]) == 0


@pytest.fixture
def operator(app: Flask, key: str) -> Visitor:
    visitor = Visitor(app)
    assert visitor.sign_in(key).headers["Location"] == PAGE
    return visitor


def test_a_key_signs_in_once_and_ends_with_its_hours(
    app: Flask, key: str, admin_engine: Engine, tenant: FreshTenant
) -> None:
    first, second, holder = Visitor(app), Visitor(app), Visitor(app)
    assert first.sign_in(key).status_code == 303
    refused = second.sign_in(key)
    assert refused.status_code == 401
    assert "was used, or has expired" in refused.text
    assert second.sign_in("opk_nonsense").status_code == 401
    assert first.get(PAGE).status_code == 200
    # The holder of a tenant's key is no operator, and an operator has no tenant.
    holder.sign_in(tenant.root_key)
    assert holder.get(PAGE).status_code == 303
    assert first.get("/console/webhooks").status_code == 303
    with admin_engine.begin() as connection:
        stored = connection.scalars(text("SELECT digest FROM operator_sessions")).all()
        assert all(len(digest) == 32 for digest in stored)
        connection.execute(text("UPDATE operator_sessions SET expires_at = now()"))
    assert first.get(PAGE).status_code == 303


def test_tenants_are_listed_by_what_they_have_most_of_without_their_content(
    operator: Visitor,
    database: Database,
    api: ApiOf,
    tenant: FreshTenant,
    other_tenant: FreshTenant,
    worker: Worker,
) -> None:
    webhook = make_webhook(api(), description="A secret plan")
    make_findings(api(), 3)
    worker.send(webhook, 500, error="no")
    make_webhook(api(other_tenant.root_key))
    with database.across_tenants() as session:
        tenant_figures.compute(session)
        (of_tenant,) = tenant_figures.find(session, str(tenant.id), 5)
        assert (of_tenant.waiting, of_tenant.failed, of_tenant.failing) == (0, 3, 0)
        for sort in Sort:
            (first,) = tenant_figures.rows(session, sort, None, 1)
            after = (getattr(first, sort), first.tenant_id)
            (second,) = tenant_figures.rows(session, sort, after, 1)
            assert first.tenant_id != second.tenant_id
            assert getattr(first, sort) >= getattr(second, sort)
        plan = session.execute(
            text(
                "EXPLAIN SELECT * FROM tenant_figures ORDER BY waiting DESC, tenant_id DESC LIMIT 5"
            )
        )
        assert "Sort" not in str(plan.all())
    page = operator.get(f"{PAGE}?sort=failed").text
    assert page.index(ids.text("ten", tenant.id)) < page.index(ids.text("ten", other_tenant.id))
    assert "secret plan" not in page
    assert 'aria-sort="descending"' in page
    assert operator.get(f"{PAGE}?sort=nonsense").status_code == 200
    assert "after: " in operator.get(f"{PAGE}?after=x").text
    found = operator.get(f"{PAGE}?q=A%20STRAN").text
    assert ids.text("ten", other_tenant.id) in found
    assert ids.text("ten", tenant.id) not in found


def test_a_tenant_whose_figures_change_between_two_pages_hides_no_other(
    operator: Visitor,
    admin_engine: Engine,
    tenant: FreshTenant,
    other_tenant: FreshTenant,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    last, first = sorted((tenant.id, other_tenant.id))
    made = """
    INSERT INTO tenant_figures (tenant_id, waiting, failed, failing, slow, bytes)
    SELECT id, 9, 0, 0, 0, 0 FROM unnest(CAST(:ids AS uuid[])) AS id
    """
    with admin_engine.begin() as connection:
        connection.execute(text("DELETE FROM tenant_figures"))
        connection.execute(text(made), {"ids": [first, last]})
    monkeypatch.setattr("app.console.pages.operator._MOST", 1)
    page = operator.get(PAGE).text
    assert ids.text("ten", first) in page
    (more,) = re.findall(r'rel="next" href="([^"]+)"', page)
    with admin_engine.begin() as connection:
        sent = "UPDATE tenant_figures SET waiting = 0 WHERE tenant_id = :id"
        connection.execute(text(sent), {"id": first})
    assert ids.text("ten", last) in operator.get(more.replace("&amp;", "&")).text


def test_every_lane_of_a_webhook_counts(
    database: Database, api: ApiOf, tenant: FreshTenant, worker: Worker
) -> None:
    webhook = make_webhook(api(), lanes=4)
    for _ in range(12):
        make_findings(api(), 1)
    with database.across_tenants() as session:
        for lane in lanes.of_webhook(session, tenant.id, ids.read("whk", webhook["id"])):
            lanes.number(session, tenant.id, lane)
        failing = "UPDATE lanes SET failing_since = now(), consecutive_failures = 99"
        session.execute(text(f"{failing} WHERE tenant_id = :tenant"), {"tenant": tenant.id})
        tenant_figures.compute(session)
        (found,) = tenant_figures.find(session, str(tenant.id), 5)
    assert (found.waiting, found.failing) == (12, 1)


def test_suspending_and_resuming_is_the_operator_s_act_in_the_tenant_s_chain(
    operator: Visitor, database: Database, api: ApiOf, tenant: FreshTenant
) -> None:
    with database.across_tenants() as session:
        tenant_figures.compute(session)
    name = ids.text("ten", tenant.id)
    place = f"{PAGE}?q={name}"
    fields = {**operator.form(place, f"{PAGE}/{name}/suspend"), "reason": "unpaid"}
    foreign = operator.post(f"{PAGE}/{name}/suspend", fields, **{"Sec-Fetch-Site": "cross-site"})
    assert foreign.status_code == 403
    forged = operator.post(f"{PAGE}/{name}/suspend", {**fields, "_token": "0" * 64})
    assert forged.status_code == 403
    assert operator.post(f"{PAGE}/{name}/suspend", fields).status_code == 303
    assert api().get("/v1/keys/self").status_code == 403
    shown = operator.get(place).text
    assert "is suspended" in shown
    assert 'class="status suspended"' in shown
    fields = operator.form(place, f"{PAGE}/{name}/resume")
    assert operator.post(f"{PAGE}/{name}/resume", fields).status_code == 303
    entries = api().get("/v1/audit?action=tenant.&limit=2").json["data"]
    assert [each["action"] for each in entries] == ["tenant.resume", "tenant.suspend"]
    assert entries[1]["details"] == {"reason": "unpaid", "by": "Ops on call"}
    assert entries[0]["actor"] == {"type": "operator", "id": "manage"}
    stranger = operator.post(f"{PAGE}/{ids.text('ten', ids.new())}/suspend", fields)
    assert stranger.status_code == 404
    operator.send(PAGE, to=f"{PAGE}/sign-out")
    assert operator.get(PAGE).status_code == 303


@pytest.mark.browser
def test_the_list_is_accessible_and_narrow(
    browser: Browser, site: Web, key: str, database: Database, tenant: FreshTenant
) -> None:
    with database.across_tenants() as session:
        session.execute(
            text("UPDATE tenants SET name = :name WHERE id = :id"),
            {"name": f"<b>{'long' * 60}", "id": tenant.id},
        )
        tenant_figures.compute(session)
    page = browser.new_page(base_url=site.base_url)
    page.goto("/console/sign-in")
    page.fill("#key", key)
    page.click("button:text('Sign in')")
    page.wait_for_url("**/console/operator")
    found = Axe().run(page).response["violations"]
    assert [each["id"] for each in found if each["impact"] in ("serious", "critical")] == []
    page.set_viewport_size({"width": 320, "height": 640})
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    page.close()
