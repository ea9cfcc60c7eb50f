"""Exports in the console: ordered by a form, followed, downloaded, deleted."""

from flask import Flask

from tests.support.callers.api import FreshTenant, Mint
from tests.support.callers.console import HERE, signed_in
from tests.support.evidence.exporting import Exporter, exporter

__all__ = ["exporter"]

LIST = "/console/exports"


def test_a_period_is_ordered_followed_downloaded_and_deleted(
    app: Flask, tenant: FreshTenant, exporter: Exporter
) -> None:
    made = exporter.records(3)
    visitor = signed_in(app, tenant.root_key)
    period = {"since": "2026-01-01T00:00", "until": exporter.now().strftime("%Y-%m-%dT%H:%M:%S.%f")}

    ordered = visitor.post(LIST, {**visitor.form(LIST), **period, "agent_id": ""})
    page = ordered.headers["Location"]
    making = visitor.get(page).text
    export = exporter.work({"id": page.rpartition("/")[2]})
    ready = visitor.get(page).text
    file = visitor.get(f"{page}/files/export.ndjson", **HERE)

    assert ordered.status_code == 303
    assert 'data-live="watch"' in making
    assert "3 records" in ready
    assert export["sha256"] in ready
    assert all(each["id"].encode() in file.data for each in made)
    assert visitor.get(f"{page}/files/export.ndjson").headers["Location"] == page
    assert "3" in visitor.get(LIST).text
    visitor.post(f"{page}/delete", visitor.form(page, f"{page}/delete"))
    assert "The file is gone" in visitor.get(page).text


def test_a_bad_period_is_shown_at_its_field(app: Flask, tenant: FreshTenant) -> None:
    visitor = signed_in(app, tenant.root_key)
    period = {"since": "2026-01-02T00:00", "until": "2026-01-01T00:00"}

    answer = visitor.post(LIST, {**visitor.form(LIST), **period})

    assert answer.status_code == 422
    assert 'id="e-until"' in answer.text
    assert "2026-01-02T00:00" in answer.text


def test_who_may_not_order_sees_no_form(app: Flask, mint: Mint) -> None:
    assert "<form method" not in signed_in(app, mint(role="write")).get(LIST).text
