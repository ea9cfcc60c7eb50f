"""`verify.py` as a text: short enough for an auditor to read, and the bytes that were published."""

import ast
import hashlib
import io
import tokenize
from pathlib import Path

from app.evidence import verify
from app.evidence.pack import verifier_source

SOURCE = Path(verify.__file__)
MOST_LINES = 1850
RENEW = "Once verify.py is ready: cd app/evidence && sha256sum verify.py > verify.py.sha256"
NO_CODE = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}


def docstrings(source: bytes) -> set[int]:
    """The numbers of the lines that are documentation."""
    documented = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node)
    ]
    spans = [(each.body[0].lineno, each.body[0].end_lineno or 0) for each in documented]
    return {number for first, last in spans for number in range(first, last + 1)}


def lines_of_code(source: bytes) -> int:
    """How many lines a token begins on, but for comments and docstrings."""
    tokens = tokenize.tokenize(io.BytesIO(source).readline)
    return len({each.start[0] for each in tokens if each.type not in NO_CODE} - docstrings(source))


def test_an_auditor_has_fewer_than_1850_lines_of_code_to_read() -> None:
    found = lines_of_code(verifier_source())
    assert found < MOST_LINES, f"{found} lines of code: take something out, or say it in less"


def test_its_digest_is_the_one_that_the_repository_publishes() -> None:
    digest, name = (SOURCE.parent / "verify.py.sha256").read_text("ascii").split()
    found = hashlib.sha256(verifier_source()).hexdigest()
    assert (digest, name) == (found, "verify.py"), RENEW
