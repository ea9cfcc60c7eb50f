"""Operators' commands, and a tenant whose chain is in a log, put back before each test."""

from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Engine, create_engine

from app.manage import commands
from app.settings import Settings
from tests.support.database.databases import made_database
from tests.support.evidence.chains import Place, Saved, new_place


@pytest.fixture
def manage(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Return a function that runs an operator's command, with these settings besides.

    It returns the exit status and all that was printed.
    """

    def run(*arguments: str, **settings: str) -> tuple[int, str]:
        for name, value in (environ | settings).items():
            monkeypatch.setenv(name, value)
        status = commands.main(arguments)
        said = capsys.readouterr()
        return status, said.out + said.err

    return run


@pytest.fixture(scope="session")
def shared_place(
    base_settings: Settings, admin_engine: Engine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Place, Saved]]:
    """Have a place once for all these tests, and what is needed to go back to how it was."""
    folder = tmp_path_factory.mktemp("chains")
    with made_database(base_settings, admin_engine) as own:
        engine = create_engine(own.database_admin_url)
        with new_place(own, engine, folder) as made:
            yield made, Saved(engine, folder / "head")
        engine.dispose()


@pytest.fixture
def place(shared_place: tuple[Place, Saved]) -> Place:
    """Return the victim as if nothing had ever happened to it."""
    made, saved = shared_place
    saved.restore()
    return made
