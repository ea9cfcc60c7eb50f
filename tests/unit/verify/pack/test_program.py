"""verify.py as a program: exit codes, other Pythons, checks by hand and by other programs."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from app.evidence import pack, verify
from tests.support.evidence.verifying import answer
from tests.unit.verify import packs
from tests.unit.verify.pack.checking import PACK, checked, files_of, resealed, unzipped

VERIFIER = Path(verify.__file__)


def program(
    *arguments: object, python: str = sys.executable, verifier: Path = VERIFIER, **options: Any
) -> subprocess.CompletedProcess[bytes]:
    command = [python, "-I", "-S", str(verifier), *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, timeout=3000, **options)


def test_as_a_program_it_says_the_same(tmp_path: Path, roots: list[object]) -> None:
    (tmp_path / "pack.zip").write_bytes(PACK)
    done = program(tmp_path / "pack.zip", *roots, "--strict", cwd="/", env={"LC_ALL": "C"})
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.endswith(b"\nVALID\n")


def test_from_within_a_pack_it_cannot_vouch_for_itself(tmp_path: Path) -> None:
    folder = unzipped(tmp_path)
    done = program(verifier=folder / "verify.py", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b""), done.stdout
    assert b"NOT CHECKED  verify.py: this program came with the pack" in done.stdout
    assert program("--strict", verifier=folder / "verify.py").returncode == 2
    # Nothing was left behind, so it can be asked again.
    assert program(verifier=folder / "verify.py").returncode == 0


def test_another_verifier_in_a_pack_is_told_of(tmp_path: Path, roots: list[object]) -> None:
    files = files_of(PACK) | {"verify.py": b"print('VALID')\n"}
    found = checked(tmp_path, resealed(files), *roots)
    assert found.of("NOT CHECKED") == ["verify.py"]
    assert hashlib.sha256(files["verify.py"]).hexdigest() in found.text


@pytest.mark.parametrize("kind", ["link", "folder", "pipe", "name"])
def test_a_folder_of_anything_but_plain_files_is_refused(tmp_path: Path, kind: str) -> None:
    folder = unzipped(tmp_path)
    if kind == "link":
        (folder / "bundle.json").rename(tmp_path / "bundle.json")
        (folder / "bundle.json").symlink_to(tmp_path / "bundle.json")
    elif kind == "folder":
        (folder / "more").mkdir()
    elif kind == "pipe":
        os.mkfifo(folder / "pipe")
    else:
        (folder / "a\x1b[31mb").touch()
    done = program(verifier=folder / "verify.py")
    assert (done.returncode, done.stderr) == (1, b"")
    assert done.stdout.startswith(b"INVALID      folder: ")
    assert b"\x1b" not in done.stdout
    assert b"VALID        SHA256SUMS.sig: " in done.stdout, "everything else is checked"
    assert b"VALID        inclusion: " in done.stdout or kind == "link"


def test_what_finder_and_explorer_leave_in_a_folder_is_named_and_all_else_checked(
    tmp_path: Path, roots: list[object]
) -> None:
    folder = unzipped(tmp_path)
    plain = answer(folder, *roots, "--strict")
    left = [".DS_Store", "._bundle.json", "Thumbs.db", "__MACOSX", "desktop.ini"]
    for each in left:
        if each == "__MACOSX":
            (folder / each).mkdir()
            (folder / each / "._checkpoint").write_bytes(b"\0")
        else:
            (folder / each).write_bytes(b"\0\0\0\1Bud1")
    found = answer(folder, *roots, "--strict")
    assert (found.code, plain.code) == (0, 0), found.text
    assert found.verdicts == plain.verdicts
    besides = f"beside the pack, and not read: {', '.join(left)}"
    told = f"VALID        folder: {len(files_of(PACK))} files, and {besides}"
    assert found.text.splitlines()[0] == told
    # A file of the pack by such a name's side is as it was: changed, it is refused.
    (folder / "prov.json").write_bytes(b"{}")
    assert answer(folder, *roots).code == 1
    (folder / "notes.txt").touch()
    assert "notes.txt" in answer(folder).text


def test_what_cannot_be_read_ends_with_2(tmp_path: Path) -> None:
    (tmp_path / "pack.zip").write_bytes(PACK)
    (tmp_path / "text").write_bytes(b"text")
    private = Ed25519PrivateKey.from_private_bytes(bytes(32)).private_bytes_raw()
    (tmp_path / "raw").write_bytes(private)
    good = tmp_path / "pack.zip"
    for arguments in (
        [tmp_path / "none.zip"],
        [tmp_path / "text"],
        ["a\0b"],
        [good, "--key", tmp_path / "none"],
        [good, "--key", tmp_path / "text"],
        [good, "--key", tmp_path / "raw"],
        [good, "--policy", tmp_path / "text"],
        [good, "--tsa-ca", tmp_path / "text"],
    ):
        found = answer(*arguments)
        assert found.code == 2, arguments
        assert found.last.startswith("COULD NOT BE READ: ")


def test_a_closed_pipe_and_an_interrupt_end_it_quietly(tmp_path: Path) -> None:
    (tmp_path / "pack.zip").write_bytes(PACK)
    command = f"'{sys.executable}' -I -S '{VERIFIER}' '{tmp_path}/pack.zip' | :"
    done = subprocess.run(["sh", "-c", command], check=False, capture_output=True)
    assert done.stderr == b""
    for command in ("{} > /dev/full", "{} >&-"):
        run = command.format(f"'{sys.executable}' -I -S '{VERIFIER}' '{tmp_path}/pack.zip'")
        done = subprocess.run(["sh", "-c", run], check=False, capture_output=True)
        assert (done.returncode, done.stderr) == (2 if "full" in command else 0, b"")
    os.mkfifo(tmp_path / "pipe")
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(VERIFIER), str(tmp_path / "pipe")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    # It opens the pipe once it runs; only then does this return.
    with (tmp_path / "pipe").open("wb"):
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=300)
    assert (process.returncode, out, error) == (130, b"", b"")


def test_a_pack_may_come_through_a_pipe() -> None:
    command = [sys.executable, "-I", "-S", str(VERIFIER), "/dev/stdin"]
    done = subprocess.run(command, input=PACK, check=False, capture_output=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("minor", range(8, 15))
def test_it_runs_on_other_pythons_that_are_here(
    tmp_path: Path, minor: int, roots: list[object]
) -> None:
    python = shutil.which(f"python3.{minor}")
    if (
        python is None
        or subprocess.run([python, "-V"], check=False, capture_output=True).returncode
    ):
        pytest.skip(f"no python3.{minor} is on the path")
    (tmp_path / "pack.zip").write_bytes(PACK)
    done = program(tmp_path / "pack.zip", *roots, "--strict", python=python)
    assert (done.returncode, done.stderr) == (0, b""), done.stdout


def test_other_programs_check_an_unzipped_pack_as_its_readme_says(tmp_path: Path) -> None:
    folder = unzipped(tmp_path)
    lines = (folder / "README.txt").read_text().splitlines()
    signed = "    openssl pkeyutl -verify -pubin -inkey"
    commands = [line.strip() for line in lines if line.startswith(signed)]
    commands.append("sha256sum -c SHA256SUMS")
    assert len(commands) == 3
    for command in commands:
        done = subprocess.run(command.split(), cwd=folder, check=False, capture_output=True)
        assert done.returncode == 0, (command, done.stderr)
    (folder / "bundle.json").write_bytes(files_of(PACK)["bundle.json"] + b"\n")
    for command in commands[1:]:
        assert subprocess.run(command.split(), cwd=folder, check=False).returncode != 0


def by_hand(folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run what a pack's README says of checking inclusion and the log's signature by hand."""
    lines = (folder / "README.txt").read_text().splitlines()
    begin = lines.index(next(each for each in lines if each.startswith("    sum()")))
    end = lines.index("        -in ../log.txt -sigfile ../log.sig")
    script = "\n".join(each for each in lines[begin : end + 1] if each.startswith("    "))
    return subprocess.run(
        ["sh", "-e", "-c", script], cwd=folder, check=False, capture_output=True, text=True
    )


@pytest.mark.parametrize(
    ("others", "index"), [(0, 0), (1, 0), (1, 1), (4, 4), (5, 3), (6, 6), (8, 8), (12, 7)]
)
def test_inclusion_is_checked_by_hand_as_the_readme_says(
    tmp_path: Path, others: int, index: int
) -> None:
    made = b"".join(pack.write(packs.evidence(others=others, index=index)))
    folder = unzipped(tmp_path, made)
    done = by_hand(folder)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert done.stdout.splitlines()[0] == "the log has the bundle"
    assert answer(folder).code == 0, "nothing was written into the folder"
    good = (folder / "checkpoint").read_text()
    (folder / "checkpoint").write_text(good.replace("\n", "\n1", 1))
    assert by_hand(folder).returncode != 0, "another size is not signed"
    (folder / "checkpoint").write_text(good)
    (folder / "bundle.json").write_bytes((folder / "bundle.json").read_bytes() + b" ")
    assert by_hand(folder).stdout.startswith("NOT in this log")


def test_it_opens_no_connection_and_imports_nothing_else() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-X", "importtime", str(VERIFIER), "--help"],
        check=True,
        capture_output=True,
    )
    assert b"socket" not in done.stderr
    assert b"ssl" not in done.stderr


def test_the_files_of_a_pack_are_known_to_its_reader() -> None:
    options, report = Namespace(path=None, policy=None, tsa_ca=None), verify.Report(strict=False)
    table = verify.RecordPack(options, report).table()
    files = {each.name: each.group for each in table if each.is_file}
    assert {name for name, group in files.items() if not group} | verify.OTHERS <= {*files_of(PACK)}
    assert {*files_of(PACK)} <= {*files, *verify.OTHERS}
    groups = {group: {name for name in files if files[name] == group} for group in pack.FURTHER}
    assert groups == {group: {*names} for group, names in pack.FURTHER.items()}
