"""A service of its own for each file of digests' tests, and a mail server."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import Engine

from app.settings import Settings
from tests.jobs.digesting import Desk, Tenant, desk_at
from tests.support.database.databases import made_database
from tests.support.servers.mail import Mood, Postbox, serving


@pytest.fixture(scope="module")
def own_settings(postgres: object, settings: Settings, admin_engine: Engine) -> Iterator[Settings]:
    with made_database(settings, admin_engine) as own:
        yield replace(own, digest_settle=timedelta(seconds=900))


@pytest.fixture(scope="module")
def server() -> Iterator[Postbox]:
    with serving() as postbox:
        yield postbox


@pytest.fixture
def postbox(server: Postbox) -> Postbox:
    server.taken(Mood.TAKE)
    server.mails.clear()
    server.at_recipient = server.at_content = server.at_refusal = lambda: None
    server.objects_to = lambda _: False
    return server


@pytest.fixture
def desk(own_settings: Settings, postbox: Postbox) -> Iterator[Desk]:
    with desk_at(own_settings, postbox) as desk:
        yield desk
        # Nothing of one test is due in the next.
        desk.run("UPDATE tenants SET notification_email = NULL")
        desk.run("UPDATE tenants SET alert_kinds = NULL, suspended_at = NULL")
        desk.run("DELETE FROM digests; DELETE FROM jobs; DELETE FROM findings")
        desk.run("DELETE FROM alert_recipients; DELETE FROM alert_mails; DELETE FROM alerts")
        desk.run("DELETE FROM audit_breaks")


@pytest.fixture
def tenant(desk: Desk) -> Tenant:
    made = Tenant(desk)
    made.set_address()
    return made
