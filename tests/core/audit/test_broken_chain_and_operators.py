"""One tenant's broken audit chain stops no act of the operator's, and is told."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text

from app import ids
from app.core import tenants
from app.core.verification import alerts
from app.settings import Settings
from tests.support.callers.api import FreshTenant, serving
from tests.support.database.databases import made_database
from tests.support.evidence.chains import BROKEN_HEADS
from tests.support.evidence.logs import World, new_world
from tests.support.secrets import MASTER_KEYS

Manage = Callable[..., tuple[int, str]]


@dataclass
class Site:
    """A service of three tenants; the chain of the one in the middle is broken."""

    settings: Settings
    world: World
    owner: Engine
    tenants: tuple[FreshTenant, FreshTenant, FreshTenant]

    @property
    def victim(self) -> FreshTenant:
        return self.tenants[1]

    def actions(self, tenant: FreshTenant) -> list[str]:
        """Return what the tenant's chain says was done."""
        with self.world.database.transaction(tenant.id) as session:
            query = text("SELECT action FROM audit_entries ORDER BY seq")
            return list(session.scalars(query))

    def told(self) -> str | None:
        """Return what operators are told of breaks."""
        with self.world.database.across_tenants() as session:
            return "; ".join(alerts.open_breaks(session).values()) or None


@pytest.fixture(scope="module")
def own(settings: Settings, admin_engine: Engine) -> Iterator[Settings]:
    """Return settings that name a database of these tests' own."""
    with made_database(settings, admin_engine) as made:
        yield made


@pytest.fixture(params=list(BROKEN_HEADS.values()), ids=list(BROKEN_HEADS))
def site(request: pytest.FixtureRequest, own: Settings, tmp_path: Path) -> Iterator[Site]:
    """Return a service with a published log and a chain that is broken in one of these ways."""
    owner = create_engine(own.database_admin_url)
    with new_world(own, owner, tmp_path) as world:
        first, victim, last = (
            FreshTenant(*tenants.create(world.database, MASTER_KEYS, name))
            for name in ("first", "victim", "last")
        )
        world.grow(3)
        with owner.begin() as connection:
            assert connection.execute(text(request.param), {"tenant": victim.id}).rowcount == 1
        yield Site(own, world, owner, (first, victim, last))
    owner.dispose()


@pytest.fixture
def run(site: Site, manage: Manage, tmp_path: Path) -> Manage:
    """Return a function that runs an operator's command on that service."""
    head_url = (tmp_path / "head").as_uri()
    return partial(manage, DATABASE_URL=site.settings.database_url, LOG_HEAD_URL=head_url)


@pytest.mark.parametrize(
    ("command", "action"),
    [
        (("signing-key", "rotate"), "signing_key.rotate"),
        (("log", "succeed", "--yes", "--force"), "log.succeed"),
    ],
    ids=["rotate", "succeed"],
)
def test_an_operator_s_act_goes_on_and_names_the_chain_that_took_no_entry(
    site: Site, run: Manage, command: tuple[str, ...], action: str
) -> None:
    before = site.actions(site.victim)
    status, said = run(*command)
    assert status == 0
    name = ids.text("ten", site.victim.id)
    assert f"{name}: The audit chain is broken at entry " in said
    assert "has no entry of this" in said
    for tenant in (site.tenants[0], site.tenants[2]):
        assert site.actions(tenant)[-1] == action
        assert ids.text("ten", tenant.id) not in said
    assert site.actions(site.victim) == before
    assert site.told() == "1 broken"
    assert run("signing-key", "rotate")[0] == 0, "one after it goes on too"
    assert site.actions(site.tenants[0])[-2:] == [action, "signing_key.rotate"]


@pytest.mark.parametrize("command", ["suspend", "mint", "revoke-keys", "resume"])
def test_an_operator_s_act_on_the_tenant_of_a_broken_chain_goes_on(
    site: Site, run: Manage, command: str
) -> None:
    victim = ids.text("ten", site.victim.id)
    before = site.actions(site.victim)
    if command == "resume":
        run("tenant", "suspend", victim)
    arguments = {"revoke-keys": ["--yes"]}.get(command, [])
    status, said = run("tenant", command, *arguments, victim)
    assert status == 0
    assert said.startswith(("suspended\n", "key: svc_", "revoked 1 keys\n", "resumed\n"))
    assert said.count(f"warning: {victim}: The audit chain is broken at entry ") == 1
    assert site.actions(site.victim) == before
    assert site.told() == "1 broken"


def test_the_tenant_s_own_act_is_refused_in_words(site: Site) -> None:
    with serving(site.settings) as api_of:
        api = api_of(site.victim.root_key)
        answer = api.patch("/v1/tenant/settings", {"bundle_retention_days": 30})
        settings = api.get("/v1/tenant/settings").json
    assert (answer.status_code, answer.json["type"].rpartition("/")[2]) == (
        409,
        "audit-chain-broken",
    )
    assert answer.json["expected"]
    assert settings["bundle_retention_days"] is None
