"""What the README and the documents name exists: commands, links, routes, settings."""

import re
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest
from werkzeug.exceptions import MethodNotAllowed, NotFound
from werkzeug.routing import MapAdapter

from app.api.http.services import EXTENSION
from app.lib.crypto.sealing import MasterKeys
from app.manage import commands
from app.settings import OpenId, Settings, WebLimits
from app.web import create_app
from dev.stack import ROOT
from scheduler.timetable import TIMETABLE
from tests.deploy.words import EXAMPLES, written

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
REQUIRED = {
    "DATABASE_URL": "postgresql://user:password@localhost/records",
    "MASTER_KEYS": MasterKeys.generate(),
    "BASE_URL": "https://records.example.com",
}


def text(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


def code(page: Path) -> str:
    """Return everything in a page that stands in code, spans and blocks."""
    found = re.findall(r"^```\w*\n(.*?)^```|`([^`]+)`", page.read_text(), re.MULTILINE | re.DOTALL)
    return "\n".join("".join(groups) for groups in found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_make_command_named_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):.*##", text("Makefile"), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z]+)", code(page))) <= targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_named_exists(page: Path) -> None:
    tops = "app|bench|client|dev|jobs|migrations|scheduler|tests"
    named = re.findall(rf"`((?:{tops})/[\w./]+)`", page.read_text())
    assert [each for each in named if not [*ROOT.glob(f"{each.rstrip('/')}*")]] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_heading_linked_to_exists(page: Path) -> None:
    for path, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
        target = page.parent / path if path else page
        headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}
        assert anchor in anchors


def routes_named(page: Path) -> set[tuple[str, str]]:
    """Return each method and path that a page names, ids and variables filled in."""
    source = page.read_text()
    named = set(re.findall(r"`(GET|POST|PATCH|DELETE)\s+(/[^`\s]+)", source))
    commands = re.compile(r"(?:curl|api) (.*?\$BASE_URL/.*?)(?=\n\S|\n\n|\n```)", re.DOTALL)
    for command in commands.findall(source):
        path = re.search(r"\$BASE_URL(/[^\"\s]*)", command)
        assert path is not None
        method = re.search(r"-X ([A-Z]+)", command)
        implied = "POST" if " -d " in command else "GET"
        named.add((method[1] if method else implied, path[1]))
    return {(method, re.sub(r":\w+|\$\w+", "x", path).partition("?")[0]) for method, path in named}


@pytest.fixture(scope="module")
def routes() -> Iterator[MapAdapter]:
    """Return the routes of an application without servers."""
    created = create_app(Settings.from_environ(REQUIRED))
    yield created.url_map.bind("localhost")
    created.extensions[EXTENSION].close()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_route_named_exists(page: Path, routes: MapAdapter) -> None:
    for method, path in routes_named(page):
        try:
            routes.match(path, method)
        except (NotFound, MethodNotAllowed):
            pytest.fail(f"{page.name} names {method} {path}")


def test_the_pages_name_routes_at_all() -> None:
    assert len(routes_named(ROOT / "README.md")) >= 8
    assert len(routes_named(ROOT / "docs" / "operations.md")) >= 8


def documented_settings() -> dict[str, str]:
    """Return the default of each setting in the first list of the operations manual."""
    manual = text("docs/operations.md").partition("These belong to")[0]
    found = re.findall(r"^- `([A-Z0-9_]+)` \(([^)]+)\): ", manual, re.MULTILINE)
    return {name: default.strip(" `") for name, default in found}


def test_the_settings_documented_are_those_that_are_read() -> None:
    groups = (*fields(Settings), *fields(WebLimits), *fields(OpenId))
    read = {each.metadata.get("name") for each in groups}
    assert set(documented_settings()) == read - {None, "DATA_DIR"}


def test_the_defaults_documented_are_the_defaults() -> None:
    documented = documented_settings()
    given = {
        name: default
        for name, default in documented.items()
        if default not in ("required", "none") and default not in documented
    }
    assert len(given) >= 8
    unset = Settings.from_environ(REQUIRED)
    as_documented = Settings.from_environ(REQUIRED | given)
    assert replace(as_documented, master_keys=unset.master_keys) == unset
    found = {
        each.metadata.get("name"): getattr(group, each.name)
        for group in (unset, unset.web, unset.openid)
        for each in fields(group)
    }
    for name in (name for name, default in documented.items() if default == "none"):
        assert not found[name], name


def test_the_variables_of_the_procfile_are_documented_with_their_defaults() -> None:
    in_procfile = dict(re.findall(r"\$\{([A-Z_]+):-([^}]+)\}", text("Procfile")))
    manual = text("docs/operations.md").partition("These belong to")[2]
    # The service reads some of them too.
    documented = documented_settings()
    for names, defaults in re.findall(r"^- (`[A-Z_]+`[^(]*) \(([^)]+)\): ", manual, re.MULTILINE):
        pairs = zip(
            re.findall(r"`([^`]+)`", names), re.findall(r"`([^`]+)`", defaults), strict=True
        )
        documented |= dict(pairs)
    assert {name: documented.get(name) for name in in_procfile} == in_procfile


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_operators_command_named_exists(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A word that is no value: `ten_…`, `GROUP=ROLE` and what follows an option are.
    words_of = r"python -m app\.manage((?: [a-z]+(?:-[a-z]+)*(?![\w=-]))+)"
    for words in re.findall(words_of, code(page)):
        assert commands.main([*words.split(), "--help"]) == 0, words
    capsys.readouterr()


def test_every_entry_of_the_timetable_named_exists() -> None:
    for page in PAGES:
        assert set(re.findall(r"(?:NAME=|scheduler now )([a-z_]+)", page.read_text())) <= set(
            TIMETABLE
        )
    pruned_at = time.strftime("%H:%M", time.gmtime(TIMETABLE["prune_history"].next_after(0)))
    assert f"daily at {pruned_at} UTC" in " ".join(text("docs/operations.md").split())


def test_every_line_of_the_log_worth_an_alarm_is_written_somewhere() -> None:
    source = "\n".join(
        path.read_text() for top in ("app", "jobs") for path in (ROOT / top).rglob("*.py")
    )
    manual = (
        text("docs/operations.md").partition("worth an alarm")[2].partition("A webhook's own")[0]
    )
    names = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", manual))
    assert len(names) >= 9
    written = {name for name in names if f'"{name}"' in source or f"{name}=" in source}
    assert written == names


def test_the_folders_named_exist() -> None:
    named = re.findall(r"`([a-z/]+/)`", text("README.md").partition("Where things live")[2])
    assert len(named) >= 9
    assert [name for name in named if not (ROOT / name).is_dir()] == []


def test_the_deployment_has_the_examples_that_get_values_of_test_deploy() -> None:
    assert [example for example in EXAMPLES if example not in written()] == []
