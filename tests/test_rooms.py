"""Limits that keep the code findable: short modules, short functions."""

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Auditors download this one file and read it; a migration is never moved again; one table has all
# problem types; a program writes the client's types.
EXEMPT = (
    "app/evidence/verify.py",
    "migrations/",
    "app/errors.py",
    "client/record_service/schemas.py",
)
MOST_LINES, MOST_LINES_OF_A_FUNCTION, MOST_WORDS = 400, 60, 69


@pytest.fixture(scope="module")
def modules() -> dict[str, str]:
    """Return the text of every module of the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    return {
        name: (ROOT / name).read_text()
        for name in listed
        if not name.startswith(EXEMPT) and (ROOT / name).is_file()
    }


def test_no_module_is_long(modules: dict[str, str]) -> None:
    assert {name.split("/")[0] for name in modules} >= {"app", "jobs", "scheduler", "tests"}
    lines = {name: text.count("\n") for name, text in modules.items()}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}


def test_functions_and_docstrings_of_modules_are_short(modules: dict[str, str]) -> None:
    long = {}
    for path, text in modules.items():
        module = ast.parse(text)
        words = len((ast.get_docstring(module) or "").split())
        if not 0 < words <= MOST_WORDS:
            long[path] = f"a docstring of {words} words"
        for node in _statements(module):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > MOST_LINES_OF_A_FUNCTION:
                    long[f"{path}: {node.name}"] = f"{lines} lines"
    assert long == {}


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Walk statements alone: expressions are nine tenths of a tree."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            if isinstance(child, ast.stmt):
                yield child
            yield from _statements(child)
