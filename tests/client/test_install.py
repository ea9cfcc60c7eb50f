"""The printed line installs the service's own wheel, whatever an index offers under its name."""

import os
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest
import requests

from tests.support.callers.api import ApiOf
from tests.support.programs.frameworks import CLIENT, offered

pytestmark = pytest.mark.toolbox

OLDEST, NEWEST = (3, 9), (3, 14)
# Where pip finds click and httpx2; each Python gets those that it can run.
INDEX = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple")


def pythons() -> list[str]:
    """Return the oldest and the newest Python of this machine that the client is for."""
    found = {}
    for minor in range(OLDEST[1], NEWEST[1] + 1):
        kept = sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python3"))
        on_path = shutil.which(f"python3.{minor}")
        for each in [*map(str, kept), *([on_path] if on_path else [])]:
            if subprocess.run([each, "-c", ""], capture_output=True, check=False).returncode == 0:
                found[minor] = each
    return list(dict.fromkeys([found[min(found)], found[max(found)]])) if found else []


@pytest.fixture(params=pythons())
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return the folder of programs of a bare Python."""
    try:
        requests.head(INDEX, timeout=10)
    except requests.ConnectionError:
        pytest.skip("no index of packages can be reached from here")
    folder = tmp_path / "machine"
    subprocess.run([request.param, "-m", "venv", str(folder)], check=True)
    return folder / "bin"


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """Return an index that offers a foreign package of the client's name."""
    return offered(tmp_path / "index")


@pytest.fixture
def printed(base_url: str, api: ApiOf) -> str:
    """Return the line that the page of the client prints for pip, at this service's address."""
    page = api(None).get("/client/").text
    lines = [unescape(each) for each in re.findall(r"<pre>(.*)</pre>", page)]
    (line,) = [each for each in lines if each.startswith("pip install")]
    return line.replace("https://records.test", base_url)


def run(machine: Path, line: str, index: Path) -> subprocess.CompletedProcess[str]:
    """Run a line of a shell where both indexes are asked."""
    return subprocess.run(
        ["sh", "-c", line],
        env={
            "PATH": f"{machine}:{os.environ['PATH']}",
            "PIP_EXTRA_INDEX_URL": index.as_uri(),
            "PIP_FIND_LINKS": str(index / CLIENT),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        },
        cwd=machine.parent,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_printed_line_installs_ours_beside_an_index_that_offers_another(
    machine: Path, index: Path, printed: str
) -> None:
    # Another hash than the wheel's: what would come from somebody in between.
    digest = printed[-65:-1]
    other = run(machine, printed.replace(digest, "0" * 64), index)
    assert other.returncode != 0
    assert "do not match the hashes" in other.stderr.lower(), other.stderr

    done = run(machine, printed, index)
    assert done.returncode == 0, done.stderr
    check = "import record_service as r; print(r.Client, r.AsyncClient, r.Recorder, r.version())"
    works = run(machine, f"record-service --version && python -c '{check}'", index)
    assert works.stdout.splitlines()[0] == "0.1.0", works.stderr
    assert "0.1.0" in works.stdout.splitlines()[1]

    # By its name alone the other one wins: so the page says not to.
    named = run(machine, f"pip install --upgrade {CLIENT}", index)
    assert (named.returncode, f"{CLIENT}-9.9" in named.stdout) == (0, True), named.stderr
