"""An installation that the doctor looks at: a database and a role of its own, to be broken."""

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Engine, create_engine, text
from sqlalchemy.engine import make_url

from app import heartbeats, migrations
from app.core.health.parts import Part, State
from app.database import Database
from app.manage.doctor import command
from app.manage.doctor.context import Context
from app.settings import Settings
from tests.support.database.databases import execute, made_database
from tests.support.faults import OwnValkey


@dataclass
class Installation:
    """Settings, the database's owner, and the service's role."""

    settings: Settings
    owner: Engine
    role: str
    environ: dict[str, str] = field(default_factory=dict)
    clock: Callable[[], float] = time.time

    def change(self, **settings: Any) -> None:
        """Change settings."""
        self.settings = replace(self.settings, **settings)

    def run(self, sql: str, **values: Any) -> None:
        """Do something to the database as its owner."""
        execute(self.owner, sql, **values)

    def found(self, *names: str) -> Mapping[str, list[Part]]:
        """Return what these checks find, or all."""
        database = Database(self.settings.database_url, pool_size=2, application="tests")
        # Guards: no verdict hangs on how soon a slow machine is done.
        given = Context(self.settings, database, self.environ, clock=self.clock, patience=20.0)
        try:
            with given as context:
                return {
                    name: command.run(context, {name: command.CHECKS[name]}, 300.0)
                    for name in names or command.CHECKS
                }
        finally:
            database.close()

    def states(self, name: str) -> set[State]:
        """Return how bad what a check finds is."""
        return {each.state for each in self.found(name)[name]}

    def failing(self, name: str, state: State = State.FAILED) -> str:
        """Return the one part of this state that a check finds, with what mends it."""
        (one,) = [each for each in self.found(name)[name] if each.state is state]
        assert one.mend
        return f"{one.text} → {one.mend}"

    def warned(self, name: str) -> str:
        """Return the one warning of a check, with what mends it."""
        return self.failing(name, State.WARNING)


def keep_alive(valkey: OwnValkey) -> None:
    """Record heartbeats of worker and scheduler that do not expire."""
    for role in heartbeats.ROLES:
        heartbeats.report(valkey.client, heartbeats.Process(role))
    for name in valkey.client.smembers(heartbeats.REPORTING):
        valkey.client.persist(name)


@contextmanager
def new_installation(settings: Settings, admin_engine: Engine) -> Iterator[Installation]:
    """Have an empty, migrated database whose service has a role of its own."""
    role, password = f"doctored_{secrets.token_hex(6)}", secrets.token_hex(12)
    with made_database(settings, admin_engine) as own:
        owner = create_engine(own.database_admin_url)
        with owner.begin() as connection:
            connection.execute(text(f"CREATE ROLE {role} LOGIN PASSWORD '{password}'"))
        url = make_url(own.database_url).set(username=role, password=password)
        named = replace(own, database_url=url.render_as_string(hide_password=False))
        migrations.migrate(named.database_admin_url, app_url=named.database_url)
        yield Installation(named, owner, role)
        owner.dispose()
    with admin_engine.begin() as connection:
        connection.execute(text(f"DROP ROLE {role}"))
