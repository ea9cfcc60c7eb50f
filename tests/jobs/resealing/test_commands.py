"""Commands say which master key can be dropped, which is in use, and which is missing."""

from collections.abc import Callable

import pytest

from app.core.master_keys import key_registry
from app.core.master_keys.resealing import SEALED_COLUMNS
from app.manage import commands
from tests.jobs.resealing.sealed import fill
from tests.jobs.resealing.sites import A_ID, B_ID, DROPPABLE, A, B, Site

Command = Callable[..., tuple[int, str]]


def test_status_says_what_is_under_each_key_and_which_can_be_dropped(
    site: Site, command: Command
) -> None:
    fill(site)
    counts = [f"SELECT count({place.column}) FROM {place.table}" for place in SEALED_COLUMNS]
    total = sum(site.scalar(count) for count in counts)
    code, said = command((B, A), "status")
    assert code == 0
    assert f"{B_ID}: keep it: it is in front and seals; 0 seals are under it\n" in said
    assert (
        f"{A_ID}: keep it: {total} seals are under it. `master-key reseal` seals them anew" in said
    )
    assert "          5  bundles.bytes\n" in said

    code, said = command((B,), "status")
    assert code == 1
    assert (
        f"{A_ID}: MISSING from MASTER_KEYS: {total} seals do not open without it. Put it " in said
    )

    site.later()
    code, said = command((B, A), "reseal")
    assert code == 0
    assert f"{total} sealed anew under {B_ID}, of 1 tenants; 0 did not open\n" in said
    code, said = command((B, A), "status")
    assert code == 0
    assert f"{B_ID}: keep it: it is in front and seals; {total} seals are under it\n" in said
    assert f"{A_ID}: {DROPPABLE}\n" in said
    assert A_ID not in command((B,), "status")[1]


def test_reseal_waits_until_no_process_has_another_key_in_front(
    site: Site, command: Command
) -> None:
    fill(site)
    with site.api(A, B) as api:
        assert api.get("/readyz").json["parts"]["master_keys"] == "up"
    code, said = command((B, A), "reseal")
    assert code == 1
    assert f"another key than {B_ID} was in front of some process's MASTER_KEYS: {A_ID} at" in said
    assert set(site.status(B, A).seals) == {A_ID}
    assert command((B, A), "reseal", "--force")[0] == 0
    site.later()
    assert command((B, A), "reseal")[0] == 0


def test_a_release_without_a_key_that_is_in_use_warns(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DATABASE_ADMIN_URL", site.settings.database_admin_url)
    for keys in ((A,), (B,), (B, A)):
        for name, value in site.environ(*keys).items():
            monkeypatch.setenv(name, value)
        assert commands.main(["migrate"]) == 0
        warned = f"warning: {key_registry.say_missing([A_ID])}\n" in capsys.readouterr().out
        assert warned is (keys == (B,))
