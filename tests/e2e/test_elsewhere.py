"""A second host can be made whenever a soak begins; what forbids it is said in one line."""

import os
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.harness.elsewhere import HostRefused, elsewhere


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and ip")
def test_a_host_is_made_while_the_kernel_still_keeps_the_last_one() -> None:
    with ExitStack() as last:
        with elsewhere() as first:
            # The kernel keeps a namespace for as long as a process lives there.
            sleeping = last.enter_context(subprocess.Popen(first.command(["sleep", "600"])))
            last.callback(sleeping.kill)
        with elsewhere() as second:
            assert first.here.network != second.here.network


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize(
    ("program", "said"),
    [
        (None, "it needs the program ip"),
        ("#!/bin/sh\necho 'Not\npermitted' >&2\nexit 2\n", "netns list` is refused: Not permitted"),
        ("no program", "netns list` does not run: .*Exec format error"),
    ],
)
def test_what_forbids_another_host_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str | None, said: str
) -> None:
    if program is not None:
        (tmp_path / "ip").write_text(program)
        (tmp_path / "ip").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostRefused, match=said) as refused, elsewhere():
        pass
    assert "\n" not in str(refused.value)
