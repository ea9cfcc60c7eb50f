"""What operators look after in the console: overview, audit chain, jobs, settings and mail."""

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import Engine, text

from app import ids
from app.api.http.services import EXTENSION
from app.clock import rfc3339
from app.core.audit import view
from app.core.delivery import accounting
from app.core.jobs import job_queue, leases, steps
from app.core.records import retention
from app.core.verification import alerts, daily
from app.database import Database
from app.models import NO_TENANT
from tests.support.callers.api import ApiOf, FreshTenant, Mint
from tests.support.callers.console import Visitor, hidden, said, signed_in
from tests.support.callers.making import make_finding, make_record, make_session
from tests.support.callers.sending import Worker, make_findings, make_webhook
from tests.support.faults import until
from tests.support.secrets import MASTER_KEYS
from tests.support.workers.expiring import Expirer

UNVERIFIABLE = "The audit chain cannot be verified against the transparency log now: "
NOTICE = r'<p class="notice[^>]*>(.*?)</p>'
AUDIT, JOBS, SETTINGS = "/console/audit", "/console/jobs", "/console/settings"
MAIL = "/console/mail"
AT = datetime(2026, 1, 31, 12, tzinfo=UTC)


def enqueue(database: Database, tenant: FreshTenant, *, fail: bool) -> str:
    """Make a job that waits, or that has given up."""
    with database.transaction(tenant.id) as session:
        job = job_queue.enqueue(session, tenant.id, kind="evidence_pack", args={"<b>": "\u202e"})
    if fail:
        with database.transaction(tenant.id) as session:
            claimed = leases.claim(session, tenant.id, job.id)
            assert claimed is not None
            assert steps.fail(session, claimed, "<script>alert(1)</script>", for_good=True)
    return ids.text("job", job.id)


@pytest.mark.usefixtures("forgotten")
def test_the_overview_says_what_needs_attention_and_counts_the_traffic(
    admin: Visitor, api: ApiOf, database: Database, tenant: FreshTenant, worker: Worker
) -> None:
    began = said(admin.get("/console/overview").text)
    assert "not replayed" not in began
    webhook, held = (make_webhook(api(), description=name) for name in ("<i>one", "two"))
    make_findings(api(), 2)
    worker.send(webhook, 500)
    assert api().patch(f"/v1/webhooks/{held['id']}", {"held": True}).status_code == 200
    enqueue(database, tenant, fail=True)
    with database.transaction(tenant.id) as session:
        alerts.report_break_in(session, tenant.id, view.broken(1, "hash", "a", "b"))
        books = accounting.of_all(session, tenant.id)
        each = [
            accounting.of(session, tenant.id, ids.parse("whk", made["id"]) or tenant.id)
            for made in (webhook, held)
        ]
    assert books == {
        **{name: sum(one[name] for one in each) for name in books if name != "balanced"},
        "balanced": True,
    }
    page = admin.get("/console/overview").text
    words = said(page)
    for sentence in (
        "The audit chain is broken",
        "2 events failed for good and were not replayed, of one cause.",
        "two is held: what is accepted waits until it is released.",
        "1 job has given up.",
        "0 succeeded, 2 failed for good",
    ):
        assert sentence in words, sentence
    assert page.index("The audit chain is broken") < page.index("1 job has given up.")
    assert "<i>" not in page
    assert "/console/jobs?status=dead" in page
    assert "by the day" in said(admin.get("/console/overview?step=day").text)
    assert "/since" not in admin.get("/console/overview?since=x").text


def test_the_audit_chain_is_listed_filtered_verified_and_taken(admin: Visitor, api: ApiOf) -> None:
    webhook = make_webhook(api())
    listed = admin.get(f"{AUDIT}?action=webhook.create").text
    assert webhook["id"] in listed
    assert ">root<" in listed
    assert "key.mint" not in listed
    assert "No entry fits" in admin.get(f"{AUDIT}?action=nothing").text
    assert admin.get(f"{AUDIT}?since=yesterday").status_code == 200
    newest = admin.get(f"{AUDIT}?limit=1").text
    (older,) = re.findall(r'rel="next" href="([^"]+)"', newest)
    assert webhook["id"] not in admin.get(older.replace("&amp;", "&")).text
    verified = admin.send(AUDIT, to=f"{AUDIT}/verify")
    head = api().get("/v1/audit/verify").json["head"]
    assert f"{head['seq']} {head['hash']}" in verified.text
    taken = admin.send(AUDIT, to=f"{AUDIT}/export")
    lines = [json.loads(line) for line in taken.text.splitlines()]
    assert lines[-2]["action"] == "audit.export"
    assert lines[-1]["type"] == "trailer"
    assert "attachment" in taken.headers["Content-Disposition"]
    assert "No head of the chain" in admin.get(f"{AUDIT}/anchors").text


@pytest.mark.usefixtures("forgotten")
def test_a_broken_chain_says_so_where_it_is_verified_and_on_every_page(
    admin: Visitor, tenant: FreshTenant, admin_engine: Engine
) -> None:
    form = admin.form(AUDIT, f"{AUDIT}/verify")
    with admin_engine.begin() as connection:
        connection.execute(text("SET LOCAL session_replication_role = replica"))
        connection.execute(
            text("UPDATE audit_entries SET hash = :hash WHERE tenant_id = :t AND seq = 2"),
            {"hash": b"\0" * 32, "t": tenant.id},
        )
    broken = admin.post(f"{AUDIT}/verify", form)
    assert broken.status_code == 409
    assert "The chain does not hold." in broken.text
    assert "Entry 2" in broken.text
    assert 'role="alert"' in admin.get("/console/keys").text
    with admin_engine.begin() as connection:
        connection.execute(
            text("UPDATE tenants SET chain_seal = :seal WHERE id = :t"),
            {"seal": b"", "t": tenant.id},
        )
    assert "The chain does not hold." in admin.get(f"{AUDIT}/anchors").text


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize(
    ("subject", "found", "wording"),
    [
        ("", "b", "The audit chain is broken: an entry is not what was written. Keep"),
        (
            "log",
            "A tile is gone; so is its parent.",
            f"{UNVERIFIABLE}A tile is gone; so is its parent.",
        ),
    ],
)
def test_a_chain_that_is_broken_is_not_one_that_cannot_be_verified(
    admin: Visitor,
    app: Flask,
    tenant: FreshTenant,
    admin_engine: Engine,
    subject: str,
    found: str,
    wording: str,
) -> None:
    with admin_engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO audit_breaks (tenant_id, subject, seq, reason, expected, found)"
                " VALUES (:t, :subject, 3, 'log-damaged', 'a', :found)"
            ),
            {"t": NO_TENANT if subject else tenant.id, "subject": subject, "found": found},
        )
    wait_for_notice(admin, app, wording)


def test_a_chain_that_was_not_verified_lately_is_said_to_be_late(
    admin: Visitor, app: Flask, admin_engine: Engine
) -> None:
    since = datetime.now(UTC) - daily.OVERDUE
    sealed = MASTER_KEYS.seal(
        json.dumps({"since": rfc3339(since)}).encode(), alerts.note_identity("verify_audit")
    )
    with admin_engine.begin() as connection:
        connection.execute(
            text("INSERT INTO sealed_notes (name, sealed) VALUES ('verify_audit', :sealed)"),
            {"sealed": sealed},
        )
    late = "The audit chain was not verified lately. It was not verified as a whole since "
    try:
        wait_for_notice(admin, app, f"{late}{since:%-d %b %Y, %H:%M:%S} UTC : see that a worker")
    finally:
        with admin_engine.begin() as connection:
            connection.execute(text("DELETE FROM sealed_notes"))


def wait_for_notice(visitor: Visitor, app: Flask, wording: str) -> None:
    """Wait until pages say this of the audit chain, and nothing else of it."""

    def is_said() -> bool:
        # The process's own tick may still write what it read before.
        app.extensions[EXTENSION].readiness.compute()
        page = visitor.get("/console/keys").text
        notices = [said(each).strip() for each in re.findall(NOTICE, page)]
        found = [each for each in notices if "audit chain" in each]
        return len(found) == 1 and found[0].startswith(wording)

    until(is_said)


def test_jobs_are_listed_filtered_and_tried_again(
    admin: Visitor, database: Database, tenant: FreshTenant, app: Flask, mint: Mint
) -> None:
    dead, waiting = (enqueue(database, tenant, fail=fail) for fail in (True, False))
    listed = admin.get(f"{JOBS}?status=dead").text
    assert dead in listed
    assert waiting not in listed
    assert "No job fits" in admin.get(f"{JOBS}?kind=digest").text
    assert "e-status" in admin.get(f"{JOBS}?status=nonsense").text
    place = f"{JOBS}/{dead}"
    shown = admin.get(place).text
    assert "<script>alert" not in shown
    assert "\\u202e" in shown
    reader = signed_in(app, mint("read"))
    assert f"{place}/retry" not in reader.get(place).text
    assert admin.send(place, to=f"{place}/retry").status_code == 303
    assert "queued" in admin.get(place).text
    assert f"{JOBS}/{waiting}/cancel" not in admin.get(f"{JOBS}/{waiting}").text


def test_all_dead_jobs_of_a_kind_are_tried_again_once_their_number_was_shown(
    admin: Visitor, database: Database, tenant: FreshTenant, api: ApiOf
) -> None:
    dead = {enqueue(database, tenant, fail=True) for _ in range(3)}
    listed = admin.get(f"{JOBS}?status=dead").text
    assert "/console/jobs/all?verb=retry" in listed
    kind = api().get(f"/v1/jobs/{next(iter(dead))}").json["kind"]
    assert "There is none" in admin.get(f"{JOBS}/all?verb=retry&kind=digest_of_nothing").text
    place = f"{JOBS}/all?verb=retry&kind={kind}"
    assert "3 jobs" in admin.get(place).text

    sent = admin.send(place, to=f"{JOBS}/all")

    assert sent.status_code == 303
    assert all(api().get(f"/v1/jobs/{each}").json["status"] == "queued" for each in dead)
    assert "There is none" in admin.get(place).text
    audited = api().get("/v1/audit?action=job.retry").json["data"]
    assert {each["target"]["id"] for each in audited} == dead


def test_settings_say_what_they_delete_before_they_are_saved(
    admin: Visitor, api: ApiOf, database: Database, tenant: FreshTenant, admin_engine: Engine
) -> None:
    session = make_session(api())["id"]
    old = make_record(api(), session)
    make_record(api(), session)
    Expirer(database, admin_engine, tenant).age(old, days=3)
    typed = {
        **admin.form(SETTINGS),
        "bundle_retention_days": "2",
        "notification_email": "a@b.example",
    }
    asked = admin.post(SETTINGS, typed)
    assert "This deletes 1 bundle within minutes" in asked.text
    assert "mailed to a@b.example" in asked.text
    assert api().get("/v1/tenant/settings").json["bundle_retention_days"] is None
    sure = hidden(asked.text, SETTINGS)
    assert "not the tenant&#39;s name" in admin.post(SETTINGS, {**sure, "_name": "x"}).text.replace(
        "tenant's", "tenant&#39;s"
    )
    with database.transaction(tenant.id) as tx:
        name = tx.execute(text("SELECT name FROM tenants")).scalar_one()
        assert retention.count_older(tx, tenant.id, timedelta(days=4)) == 0
    assert admin.post(SETTINGS, {**sure, "_name": name}).status_code == 303
    kept = api().get("/v1/tenant/settings").json
    assert (kept["bundle_retention_days"], kept["notification_email"]) == (2, "a@b.example")
    # What was said was said of other settings: it is said again.
    assert (
        admin.post(SETTINGS, {**sure, "_name": name, "bundle_retention_days": "1"}).status_code
        == 200
    )
    cleared = admin.send(SETTINGS, {"bundle_retention_days": ""})
    assert "kept for ever" in cleared.text
    assert "No more mail is sent" not in cleared.text
    assert admin.post(SETTINGS, hidden(cleared.text, SETTINGS)).status_code == 303
    assert api().get("/v1/tenant/settings").json["bundle_retention_days"] is None
    assert "No mail was sent yet" in admin.get("/console/mail").text


def test_each_link_in_a_mail_opens_its_page_through_signing_in(
    app: Flask, tenant: FreshTenant, api: ApiOf, webhook: dict[str, Any]
) -> None:
    finding = make_finding(api(), make_session(api())["id"])
    digest = f"findings?digest_id={ids.text('dig', ids.new())}"
    of_one = (f"findings/{finding['id']}", f"webhooks/{webhook['id']}", digest)
    for place in [f"/console/{each}" for each in (*of_one, "alerts", "mail", "settings")]:
        visitor = Visitor(app)
        led = visitor.get(place, **{"Sec-Fetch-Site": "cross-site"})
        assert led.status_code == 303, (place, led.text)
        form = hidden(visitor.get(led.headers["Location"]).text, "/console/sign-in")
        answer = visitor.sign_in(tenant.root_key, **form)
        assert answer.headers["Location"] == place
        page = visitor.get(place, **{"Sec-Fetch-Site": "cross-site"})
        assert (page.status_code, page.mimetype) == (200, "text/html"), place


def test_the_page_says_when_the_next_mail_is_due_and_to_whom(admin: Visitor, api: ApiOf) -> None:
    assert "no address is set" in admin.get(MAIL).text
    api().patch("/v1/tenant/settings", {"notification_email": "dana@example.com"})
    shown = admin.get(MAIL).text
    assert "<bdi>dana@example.com</bdi>" in shown
    assert "The next is made once there is something new." in shown
    make_finding(api(), make_session(api())["id"])
    due = api().get("/v1/digests").json["next"]["due_at"]
    assert re.search(rf'The next is due <time datetime="{due}"', admin.get(MAIL).text)


@pytest.mark.parametrize(
    ("status", "refusal", "state", "told"),
    [
        ("pending", "recipient", "recipient refused", "Tried once a day"),
        ("content_refused", "content", "content refused", "The next mail lists the same again"),
    ],
)
def test_a_refusal_is_shown_with_the_words_of_the_server_and_on_the_overview(
    admin: Visitor,
    tenant: FreshTenant,
    admin_engine: Engine,
    *,
    status: str,
    refusal: str,
    state: str,
    told: str,
) -> None:
    insert = text(
        "INSERT INTO digests (tenant_id, id, series, status, findings, refusals, error, refusal,"
        " said, brief) VALUES (:tenant, :id, :tenant, :status, 3, 2, 'Refused (550).', :refusal,"
        " :said, true)"
    )
    values = {"tenant": tenant.id, "id": ids.new(), "status": status, "refusal": refusal}
    with admin_engine.begin() as connection:
        connection.execute(insert, {**values, "said": "550 <script>no</script>"})
    shown = admin.get(MAIL).text
    assert f">{state}</span>" in shown
    assert "without titles" in shown
    assert "<bdi>550 &lt;script&gt;no&lt;/script&gt;</bdi>" in shown
    assert told in shown
    assert "The mail server refuses the mail" in admin.get("/console/overview").text
    with admin_engine.begin() as connection:
        connection.execute(text("DELETE FROM digests"))
