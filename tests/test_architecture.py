"""The wiring of the house: what one part names, another must have."""

import ast
import importlib
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from flask import Flask

from app.api.http.auth import PUBLIC, access_rule
from app.core.anchoring.checkpoint_round import order
from app.core.jobs.job_queue import enqueue, recur
from app.queue import ACTORS, QUEUES
from dev import uv_requirement
from jobs.actors import registry
from jobs.durable.run_job import KINDS
from scheduler.timetable import TIMETABLE
from tests.support.secrets import MASTER_KEYS_SETTING

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted(
    path for folder in ("app", "jobs", "scheduler") for path in (ROOT / folder).rglob("*.py")
)

PUBLIC_ROUTES = {
    "/",
    "/.well-known/jwks.json",
    "/client/",
    "/client/<name>",
    "/console/<path:rest>",
    "/console/assets/<digest>/<name>",
    "/console/sign-in",
    "/console/sign-in/again",
    "/console/sign-in/provider",
    "/console/sign-in/provider/answer",
    "/console/sign-in/tenant",
    "/console/sign-out",
    "/docs",
    "/docs/docs.js",
    "/healthz",
    "/metrics",
    "/openapi.json",
    "/problems/<slug>",
    "/readyz",
    "/robots.txt",
    "/s/<token>",
    "/unsubscribe/<token>",
    "/verify.py",
    "/v1/log/<int:generation>/checkpoint",
    "/v1/log/<int:generation>/key",
    "/v1/log/<int:generation>/tile/<path:tile>",
    "/v1/log/checkpoint",
    "/v1/log/key",
    "/v1/log/proof/consistency",
    "/v1/log/proof/inclusion",
    "/v1/log/tile/<path:tile>",
}

# Who may do what only one module should: the module, and the pattern that nobody else may have.
ONE_DOOR = [
    ("app/settings.py", r"os\.environ|os\.getenv|from os import .*environ"),
    ("app/database.py", r"\.commit\(\)|sessionmaker|\.begin_nested\("),
]


def test_every_name_rung_has_an_actor_and_every_actor_is_rung() -> None:
    assert set(registry.FUNCTIONS) == set(ACTORS)


def test_every_queue_is_consumed_by_the_procfile_s_worker() -> None:
    worker = re.search(r"^worker:.*--queues ([a-z ]+)$", _read("Procfile"), re.MULTILINE)
    assert worker is not None
    assert set(worker[1].split()) == set(QUEUES)


def test_every_entry_of_the_timetable_names_an_actor() -> None:
    assert {entry.name for entry in TIMETABLE.values()} <= set(ACTORS)


ENQUEUEING = (enqueue.__name__, recur.__name__, order.__name__)
PASS_KINDS_ON = (
    "app/core/jobs/job_queue.py",
    "app/core/anchoring/checkpoint_round.py",
    "app/core/digests/sending.py",
    "app/core/packs/building.py",
)


def test_every_kind_of_job_that_is_enqueued_can_be_run() -> None:
    enqueued = {
        _constant(path, keyword.value)
        for path in SOURCES
        if path.relative_to(ROOT).as_posix() not in PASS_KINDS_ON
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and _called(call) in ENQUEUEING
        for keyword in call.keywords
        if keyword.arg == "kind"
    }
    kinds = set(KINDS)
    assert enqueued <= kinds
    assert len(enqueued) > len(kinds) / 2, "kinds are enqueued in another way"
    assert all(re.fullmatch(r"[a-z_]+", kind) for kind in kinds)


def test_every_route_has_a_rule_or_stands_on_the_public_list(app: Flask) -> None:
    undecided, public = set(), set()
    for rule in app.url_map.iter_rules():
        access = access_rule(app.view_functions[rule.endpoint])
        if access is None:
            undecided.add(rule.rule)
        elif access == PUBLIC:
            public.add(rule.rule)
    assert undecided == set()
    assert public == PUBLIC_ROUTES


@pytest.mark.parametrize(("door", "pattern"), ONE_DOOR)
def test_one_module_alone_does_what_is_its_own(door: str, pattern: str) -> None:
    elsewhere = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in SOURCES
        if path != ROOT / door
        for line in path.read_text().splitlines()
        if re.search(pattern, line)
    ]
    assert elsewhere == []


def test_uv_is_installed_as_the_lock_has_it_and_nothing_without_a_hash() -> None:
    for line in re.findall(r"pip install(?:.*\\\n)*.*", _read("Makefile")):
        assert "--require-hashes -r /dev/stdin" in line
    name, *hashes = uv_requirement.requirement(_read("uv.lock")).split()
    assert re.fullmatch(r"uv==[0-9.]+", name)
    assert name.removeprefix("uv==") == version("uv"), "run make: another uv is installed"
    assert len(hashes) > 10
    assert all(re.fullmatch("--hash=sha256:[0-9a-f]{64}", each) for each in hashes)


def test_the_clock_runs_without_what_the_lock_leaves_out() -> None:
    left_out = re.findall(r'"([a-z]+); python_version < \'0\'"', _read("pyproject.toml"))
    assert left_out == ["croniter", "freezegun"]
    assert not {f'name = "{name}"' for name in left_out} & set(_read("uv.lock").splitlines())
    blocked = f"import sys; sys.modules |= dict.fromkeys({left_out}); import scheduler.__main__"
    subprocess.run([sys.executable, "-c", blocked], check=True, cwd=ROOT)


def test_the_lock_names_only_the_public_hosts_of_pypi() -> None:
    hosts = set(re.findall(r"https?://([^/\"]+)", _read("uv.lock")))
    assert hosts == {"pypi.org", "files.pythonhosted.org"}


def test_every_module_says_what_lives_in_it() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in SOURCES
        if not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


@pytest.mark.parametrize("module", ["jobs.worker", "scheduler.__main__"])
def test_a_process_of_jobs_never_loads_flask(module: str) -> None:
    loaded = (
        f"import sys, {module}; "
        "web = {'flask', 'flask_smorest', 'werkzeug'}; "
        "web |= {'app.api', 'app.console', 'app.web', 'app.asgi'}; "
        "print(*sorted(web & set(sys.modules)))"
    )
    environment = {
        **os.environ,
        "DATABASE_URL": "postgresql://nobody@127.0.0.1:9/none",
        "REDIS_URL": "redis://127.0.0.1:9/0",
        "BASE_URL": "http://127.0.0.1:9",
        "MASTER_KEYS": MASTER_KEYS_SETTING,
    }
    done = subprocess.run(
        [sys.executable, "-c", loaded],
        env=environment,
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == []


AROUND = [path for folder in ("bench", "tests") for path in (ROOT / folder).rglob("*.py")]
ROOMS = sorted({path.parent for path in (*SOURCES, *AROUND)})


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: str(room.relative_to(ROOT)))
def test_a_package_is_small_and_names_its_modules(room: Path) -> None:
    modules = {path.stem for path in room.glob("*.py")} - {"__init__", "__main__"}
    assert len(modules) <= 15, "more modules than a reader finds his way in"
    # pytest finds these by their names; what else is among tests is there to be used.
    modules = {name for name in modules if name != "conftest" and not name.startswith("test_")}
    said = ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""
    assert {name for name in modules if f"`{name}`" not in said} == set()


OF_THE_WEB = {("app", "web.py"), ("app", "console"), ("app", "api")}


def test_flask_is_imported_by_the_web_alone() -> None:
    assert [
        str(path.relative_to(ROOT))
        for path in SOURCES
        if re.search(r"^(from|import) (flask|werkzeug)", path.read_text(), re.MULTILINE)
        and path.relative_to(ROOT).parts[:2] not in OF_THE_WEB
    ] == []


def _read(name: str) -> str:
    return (ROOT / name).read_text()


def _constant(path: Path, value: ast.expr) -> object:
    """Return what an expression of a module stands for: itself, or a name of the module."""
    if isinstance(value, ast.Constant):
        return value.value
    module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    return getattr(module, ast.unparse(value))


def _called(call: ast.Call) -> str | None:
    return getattr(call.func, "id", None) or getattr(call.func, "attr", None)
