"""Anchoring is off only where the chain itself says so."""

import json
from uuid import UUID

import pytest

from app.core import tenant_settings
from app.core.audit import chain
from app.core.callers import SYSTEM, Caller, Role
from tests.support.evidence.chains import Place, daily_run, standing

SWITCH = "UPDATE tenants SET anchoring_enabled = {} WHERE id = :tenant"


def change_setting(place: Place, *, on: bool) -> int:
    """Have the tenant's owner switch anchoring; return the number of the entry that says so."""
    with place.world.database.transaction(place.tenant_id) as session:
        caller = Caller(place.tenant_id, UUID(int=1), Role.ADMIN, None, "a request")
        tenant_settings.change(session, caller, {"anchoring_enabled": on})
    return int(place.owner.scalar("SELECT seq FROM audit_heads WHERE tenant_id = :tenant"))


@pytest.mark.parametrize("asked", [{}, {"full": True}, {"since_anchor": True}])
def test_anchoring_that_was_switched_off_in_the_database_is_found(
    place: Place, asked: dict[str, bool]
) -> None:
    place.owner(SWITCH.format("false"))
    assert place.broken(**asked) == (1, "other_setting")
    (told,) = map(json.loads, place.events())
    assert told["data"]["reason"] == "other_setting"
    assert "anchoring_enabled" in told["data"]["expected"]
    place.owner(SWITCH.format("true"))
    assert place.verify()["anchors"]["enabled"] is True
    assert standing(place) is None


def test_the_daily_run_finds_it_unasked(place: Place) -> None:
    place.owner(SWITCH.format("false"))
    assert daily_run(place)["broken"] == 1
    assert standing(place) == "1 broken"
    assert len(place.events()) == 1
    place.owner(SWITCH.format("true"))
    assert daily_run(place)["broken"] == 0
    assert standing(place) is None


@pytest.mark.parametrize("on", [False, True])
def test_the_chain_s_last_word_on_it_counts(place: Place, *, on: bool) -> None:
    change_setting(place, on=False)
    if on:
        change_setting(place, on=True)
    with place.world.database.transaction(place.tenant_id) as session:
        caller = Caller(place.tenant_id, UUID(int=1), Role.ADMIN, None, "a request")
        tenant_settings.change(session, caller, {"bundle_retention_days": 7})
    anchors = place.verify()["anchors"]
    assert (anchors["enabled"], anchors["disabled_since"] is None) == (on, on)
    place.owner(SWITCH.format(not on))
    assert place.broken() == (14 if on else 13, "other_setting")


def test_a_setting_of_that_name_within_another_s_text_says_nothing(place: Place) -> None:
    with place.world.database.transaction(place.tenant_id) as session:
        chain.append(
            session,
            place.tenant_id,
            SYSTEM,
            "settings.update",
            target=("tenant", '"anchoring_enabled":{"new":false'),
            details={"note": {"new": '"anchoring_enabled":{"new":false'}},
        )
    assert place.verify()["anchors"]["enabled"] is True
