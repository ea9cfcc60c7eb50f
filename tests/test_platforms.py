"""What platforms read beside the Procfile names its processes, and every setting they need."""

import json
import re
import shutil
import subprocess
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.specifiers import SpecifierSet

from app.settings import Settings

pytestmark = pytest.mark.toolbox

ROOT = Path(__file__).resolve().parent.parent
PROCESSES = {"web", "worker", "scheduler"}
# What nothing starts without; REDIS_URL alone is optional, for a web process on its own.
REQUIRED = {
    each.metadata["name"] for each in fields(Settings) if each.metadata.get("default") == ()
} | {"REDIS_URL"}
# SIGTERM drains for so long (docs/setup.md).
DRAINED_IN = 25


def manifest(name: str) -> Any:
    text = (ROOT / name).read_text("utf-8")
    return yaml.safe_load(text) if name.endswith(".yaml") else json.loads(text)


def procfile() -> dict[str, str]:
    text = (ROOT / "Procfile").read_text("utf-8")
    return dict(re.findall(r"^([a-z]+): (.+)$", text, re.MULTILINE))


def test_the_procfile_has_the_processes_that_the_manifests_name() -> None:
    assert set(procfile()) == PROCESSES | {"release"}
    assert sorted(REQUIRED) == ["BASE_URL", "DATABASE_URL", "MASTER_KEYS", "REDIS_URL"]


def test_heroku_and_dokku_start_every_process_with_what_it_needs() -> None:
    app = manifest("app.json")
    assert {name for name, each in app["formation"].items() if each["quantity"] > 0} == PROCESSES
    (check,) = app["healthchecks"]["web"]
    assert check["path"] == "/readyz"
    given = {"heroku-postgresql": "DATABASE_URL", "heroku-redis": "REDIS_URL"}
    added = {given[each["plan"].partition(":")[0]] for each in app["addons"]}
    asked = {
        name
        for name, each in app["env"].items()
        if each.get("generator") == "secret" or each.get("required") is True
    }
    assert added | asked >= REQUIRED
    known = {each.metadata.get("name") for each in fields(Settings)}
    assert set(app["env"]) <= known | set(re.findall(r"\$\{(\w+):-", " ".join(procfile().values())))
    # The smallest database has 20 connections, and two releases meet.
    assert 2 * int(app["env"]["DATABASE_CONNECTIONS"]["value"]) <= 20


@pytest.mark.parametrize("process", sorted(PROCESSES))
def test_railway_has_a_file_for_each_process(process: str) -> None:
    file = "railway.json" if process == "web" else f"docs/railway/{process}.json"
    deploy = manifest(file)["deploy"]
    assert deploy["startCommand"] == f"exec bin/process {process}"
    assert type(deploy["drainingSeconds"]) is int
    assert deploy["drainingSeconds"] > DRAINED_IN
    if process == "web":
        assert deploy["preDeployCommand"] == ["bin/process release"]
        assert deploy["healthcheckPath"] == "/readyz"


def test_render_runs_every_process_on_stores_that_keep_what_they_have() -> None:
    blueprint = manifest("render.yaml")
    (database,) = blueprint["databases"]
    services = {
        each["name"].removeprefix("record-service-"): each for each in blueprint["services"]
    }
    redis = services.pop("redis")
    assert (redis["type"], redis["maxmemoryPolicy"]) == ("keyvalue", "noeviction")
    assert set(services) == PROCESSES
    for name, service in services.items():
        assert service["startCommand"] == f"exec bin/process {name}"
        assert service["maxShutdownDelaySeconds"] > DRAINED_IN
        given = {each.pop("key"): each for each in service["envVars"]}
        assert set(given) >= REQUIRED
        assert given["DATABASE_URL"]["fromDatabase"]["name"] == database["name"]
        assert given["REDIS_URL"]["fromService"]["name"] == redis["name"]
        for variable in ("BASE_URL", "MASTER_KEYS"):
            source = given[variable].get("fromService", {"name": service["name"]})
            assert source["name"] == services["web"]["name"]
    assert services["web"]["preDeployCommand"] == "bin/process release"
    assert services["web"]["healthCheckPath"] == "/readyz"


def unit(name: str) -> dict[str, str]:
    """Return the last value of each setting of a systemd unit, by name."""
    text = (ROOT / "docs" / "systemd" / name).read_text("utf-8")
    return dict(re.findall(r"^([A-Z]\w+)=(.*)$", text, re.MULTILINE))


def test_systemd_runs_the_release_first_and_leaves_nothing_of_a_group() -> None:
    wanted = {f"record-service@{process}.service" for process in PROCESSES}
    assert set(unit("record-service.target")["Wants"].split()) == wanted
    release, process = unit("record-service-release.service"), unit("record-service@.service")
    assert release["ExecStart"].endswith("/bin/process release")
    assert release["Type"] == "oneshot"
    assert process["ExecStart"].endswith("/bin/process %i")
    assert process["After"] == process["Wants"] == "record-service-release.service"
    assert process["KillMode"] == "mixed"
    assert process["Restart"] == "always"
    assert int(process["TimeoutStopSec"]) > DRAINED_IN


def test_the_builders_find_one_lock_and_a_python_that_it_takes() -> None:
    version = (ROOT / ".python-version").read_text("utf-8").removesuffix("\n")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert re.fullmatch(r"3\.\d+", version)
    assert version in SpecifierSet(project["requires-python"])
    managers = ("requirements.txt", "Pipfile", "Pipfile.lock", "poetry.lock", "runtime.txt")
    assert [name for name in managers if (ROOT / name).exists()] == []


def test_make_takes_the_python_of_the_machine_whatever_the_builders_are_told(
    tmp_path: Path,
) -> None:
    checkout, programs = tmp_path / "checkout", tmp_path / "programs"
    for folder in (checkout, programs):
        folder.mkdir()
    for name in ("Makefile", ".python-version", "pyproject.toml", "uv.lock"):
        shutil.copy(ROOT / name, checkout)
    # As pyenv does: the version by a file in the folder, the one that is installed elsewhere.
    stand_ins = {
        "pyenv": '[ "$1" = version-name ] && [ ! -e .python-version ] && echo 3.14.9',
        "python3": '[ "$PYENV_VERSION" = 3.14.9 ] && { [ "$1" = -c ] || { echo "$@"; exit 9; }; }',
    }
    for name, script in stand_ins.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    made = subprocess.run(
        ["make", ".venv/installed"],
        capture_output=True,
        text=True,
        check=False,
        cwd=checkout,
        env={"PATH": f"{programs}:/usr/bin:/bin"},
    )
    assert made.stdout == "-m venv --clear .venv\n"


def test_bin_process_becomes_a_line_of_the_procfile_or_refuses(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    shutil.copy(ROOT / "bin" / "process", tmp_path / "bin")
    (tmp_path / "Procfile").write_text(
        '# web: not this\nweb: exec printf \'%s|\' "$PWD" "${WORDS:-two words}" "$((2 + 3))"\n'
    )
    told = subprocess.run(
        [tmp_path / "bin" / "process", "web"], capture_output=True, text=True, check=True, cwd="/"
    )
    assert told.stdout == f"{tmp_path}|two words|5|"
    for wrong in (["wen"], []):
        refused = subprocess.run(
            [tmp_path / "bin" / "process", *wrong], capture_output=True, text=True, check=False
        )
        assert refused.returncode != 0
        assert "bin/process" in refused.stderr
        assert refused.stdout == ""
