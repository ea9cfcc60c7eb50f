"""The client's package: one wheel, served, that stands on nothing of the service."""

import ast
import csv
import io
import re
import subprocess
import sys
import zipfile
from base64 import urlsafe_b64encode
from hashlib import sha256
from html import unescape
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from app.evidence import pack
from dev.stack import ROOT

SOURCES = sorted((ROOT / "client").rglob("*.py"))
OLDEST = (3, 9)
WRITES = {"print", "click.echo", "click.secho", "click.confirm", "sys.stdout.buffer"}


def served(client: FlaskClient) -> tuple[str, bytes]:
    """Return what the page's link says the wheel's digest is, and the wheel."""
    page = client.get("/client/")
    assert page.mimetype == "text/html"
    (link,) = re.findall(r'href="([^"#]+)#sha256=([0-9a-f]{64})"', page.text)
    answer = client.get(f"/client/{link[0]}")
    assert (answer.status_code, answer.mimetype) == (200, "application/zip")
    return link[1], answer.data


def test_each_install_line_names_the_wheel_by_its_address_and_digest(client: FlaskClient) -> None:
    digest, wheel = served(client)
    assert sha256(wheel).hexdigest() == digest
    assert client.get("/client/other-1.0-py3-none-any.whl").status_code == 404
    page = client.get("/client/")
    repeated = client.get("/client/", headers={"If-None-Match": page.headers["ETag"]})
    assert repeated.status_code == 304
    line = client.get("/client/requirement.txt")
    assert line.mimetype == "text/plain"
    requirement = line.text.removesuffix("\n")
    name, _, url = requirement.partition(" @ ")
    assert name == "record-service-client"
    assert (
        url
        == f"https://records.test/client/record_service_client-0.1.0-py3-none-any.whl#sha256={digest}"
    )
    lines = re.findall(r"<pre>(.*)</pre>", page.text)
    assert [unescape(each) for each in lines] == [
        f'{tool} install "{requirement}"' for tool in ("pip", "pipx", "uv tool")
    ]


def test_the_wheel_holds_what_its_record_says_and_the_verifier_of_the_service(
    client: FlaskClient,
) -> None:
    archive = zipfile.ZipFile(io.BytesIO(served(client)[1]))
    (record,) = [name for name in archive.namelist() if name.endswith("/RECORD")]
    rows = {name: rest for name, *rest in csv.reader(archive.read(record).decode().splitlines())}

    assert set(rows) == set(archive.namelist())
    for name in rows.keys() - {record}:
        content = archive.read(name)
        digest = urlsafe_b64encode(sha256(content).digest()).rstrip(b"=").decode()
        assert rows[name] == [f"sha256={digest}", str(len(content))]
    assert archive.read("record_service/verify.py") == pack.verifier_source()
    assert "record_service/py.typed" in rows
    metadata = archive.read(record.replace("RECORD", "METADATA")).decode()
    assert re.findall(r"^Requires-Dist: (\w+)", metadata, re.MULTILINE) == ["click", "httpx2"]


def test_the_client_is_written_for_old_pythons_and_imports_nothing_of_the_service() -> None:
    allowed = {"click", "httpx2", "record_service", "tomli", "typing_extensions"} | set(
        sys.stdlib_module_names
    )
    # Each is an import of its own, for whom it is there.
    frameworks = {"agents", "claude_agent_sdk", "langchain_core", "mcp", "pydantic_ai"}
    for path in SOURCES:
        tree = ast.parse(path.read_text("utf-8"), feature_version=OLDEST)
        named = {
            name.partition(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else [each.name for each in node.names]
            )
        }
        others = {"integrations": frameworks, "otel": {"opentelemetry"}}
        assert named <= allowed | others.get(path.parent.name, set()), path


def test_its_packages_are_small_and_name_their_modules() -> None:
    for folder in sorted({path.parent for path in SOURCES} - {ROOT / "client"}):
        said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text("utf-8"))) or ""
        modules = {path.stem for path in folder.glob("*.py")} - {"__init__", "__main__"}
        assert len(modules) <= 15
        assert {name for name in modules if f"`{name}`" not in said} == set()


def test_pip_builds_from_a_checkout_what_the_service_serves(
    client: FlaskClient, tmp_path: Path
) -> None:
    build = "import sys, wheel_backend; print(wheel_backend.build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", build, str(tmp_path)],
        cwd=ROOT / "client",
        capture_output=True,
        text=True,
        check=True,
    )
    assert (tmp_path / done.stdout.strip()).read_bytes() == served(client)[1]


@pytest.mark.parametrize(
    ("imported", "not_loaded"),
    [
        ("import record_service.webhooks", "asyncio click httpx2 sqlite3 ssl uuid"),
        ("from record_service import AsyncClient, Client", "asyncio click httpx2 sqlite3"),
        ("from record_service import Recorder", "asyncio click httpx2 record_service.client ssl"),
        ("import record_service.cli", "asyncio email httpx2 ssl"),
    ],
)
def test_an_import_loads_nothing_that_is_slow_and_not_needed_yet(
    imported: str, not_loaded: str
) -> None:
    told = subprocess.run(
        [sys.executable, "-c", f"import sys; {imported}; print(*sys.modules)"],
        env={"PYTHONPATH": str(ROOT / "client")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(not_loaded.split()) & set(told.stdout.split()) == set()


def test_one_module_writes_to_the_terminal() -> None:
    """What agents wrote would steer it, so all of it passes the place that shows it harmless."""
    writers = {
        path.name
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if ast.unparse(node) in WRITES
    }
    # A script for a shell, made by click.
    assert writers == {"output.py", "general.py"}
