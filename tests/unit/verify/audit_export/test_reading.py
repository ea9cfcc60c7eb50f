"""`verify.py audit` as a program, and long exports."""

import json
import subprocess
import sys
from base64 import b64encode
from pathlib import Path

from app.evidence import verify
from tests.unit.verify.audit_export.exports import HEAD, MADE, anchor, checked, entries, lines


def test_as_a_program_it_checks_what_is_piped_to_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", verify.__file__, "audit", "/dev/stdin", "--head", HEAD],
        input=lines(MADE),
        check=False,
        capture_output=True,
    )
    assert (done.returncode, done.stderr) == (0, b""), done.stdout
    missing = [sys.executable, "-I", "-S", verify.__file__, "audit", str(tmp_path / "none")]
    assert subprocess.run(missing, check=False, capture_output=True).returncode == 2


def test_a_hundred_anchors_fit_into_a_trailer(tmp_path: Path) -> None:
    line = "\u2014 somebody " + b64encode(bytes(20_000)).decode()
    anchors = [anchor(MADE[number % 7], cosignatures=[line]) for number in range(100)]
    found = checked(tmp_path, lines(MADE, anchors))
    assert found.code == 0, found.text
    assert found.verdicts["anchor 100"] == "VALID"


def test_a_long_chain_is_read_line_by_line(tmp_path: Path) -> None:
    made = entries(500)
    assert checked(tmp_path, lines(made)).code == 0
    long = json.dumps({"a": "x" * verify.MAX_LINE}).encode() + b"\n"
    assert checked(tmp_path, lines(made[:2]) + long).code == 1
