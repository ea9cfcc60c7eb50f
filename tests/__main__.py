"""`make test` and `make test-all`: passes of tests at once, and a last line that says what failed.

Whole services mostly wait, so the other tests run meanwhile, and give way to them.
"""

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
Passes = Sequence[tuple[str, ...]]
# Where whole services are tested: the last pass collects nothing else.
STACKS = ("tests/e2e", "tests/jobs/digests/test_digest_race.py")
# Many a test waits for a deadline or another process: hence more workers than processors. With
# three of them beside whole services a fifth of two processors' time was idle.
_BESIDE = ("-n", "4", "--dist", "worksteal")
# As many as there are groups of tests that share a server (tests/e2e/conftest.py).
_ON_STACKS = ("-n", "3", "--dist", "loadfile", *STACKS)
PASSES: Passes = (
    ("-m", "not stacks and not toolbox and not browser", *_BESIDE),
    ("-m", "stacks and not toolbox", *_ON_STACKS),
)
# What `make test-all` runs after those: development tools, platforms, alerts, the browser, and the
# faults that take longest.
TOOLBOX: Passes = (
    ("-m", "toolbox and not stacks", *_BESIDE),
    ("-m", "browser", "tests/console"),
    ("-m", "stacks and toolbox", *_ON_STACKS),
)
LAST_FAILED = "v/cache/lastfailed"
_AT_MOST_NAMED = 5
# More failures than these are no accident of the machine.
_AT_MOST_AGAIN = 5
# pytest's exit code where tests failed; every other means that the pass did not finish.
_TESTS_FAILED = 1


def main() -> int:
    """Run the product's tests, or those of the toolbox; return 0 if all passed."""
    parser = argparse.ArgumentParser(prog="python -m tests", description=__doc__)
    parser.add_argument("--toolbox", action="store_true", help="what only `make test-all` runs")
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    in_ci = os.environ.get("CI") == "true"
    asked = parser.parse_args()
    return run(TOOLBOX if asked.toolbox else PASSES, asked.seed, ROOT, again=in_ci)


def run(passes: Passes, seed: int, root: Path, *, again: bool = False) -> int:
    """Run all passes at once in `root`, whatever comes of each; return 0 if all passed.

    The first is seen as it runs, each other once those before it have ended. With `again` a few
    tests that failed run once more, alone: those that pass then are named in the last line.
    """
    caches = [root / ".pytest_cache" / f"pass-{number}" for number in range(len(passes))]
    for cache in caches:
        (cache / LAST_FAILED).unlink(missing_ok=True)
    codes = _run_all(passes, caches, seed, root)
    failed = [name for cache in caches for name in _read(cache / LAST_FAILED)]
    _write(root / ".pytest_cache" / LAST_FAILED, failed)
    if not any(codes):
        print("make test: everything passed", flush=True)
        return 0
    told = _what_failed(passes, codes, failed, seed)
    if again and {*codes} <= {0, _TESTS_FAILED} and 0 < len(failed) <= _AT_MOST_AGAIN:
        print(f"make test: {told}\nmake test: once more, alone:", flush=True)
        alone = _command((*failed, "--maxfail=1"), root / ".pytest_cache" / "again", seed)
        if subprocess.run(alone, cwd=root, env=_environ(), check=False).returncode == 0:
            names = ", ".join(failed)
            print(f"make test: passed, but UNSTEADY, a fault to mend: {names}", flush=True)
            return 0
    print(f"make test: {told}", flush=True)
    return 1


def _run_all(passes: Passes, caches: Sequence[Path], seed: int, root: Path) -> list[int]:
    """Return each pass's exit code; each has a cache, all of which pytest writes at its end."""
    codes = []
    with ExitStack() as everything:
        running: list[tuple[subprocess.Popen[bytes], IO[bytes] | None]] = []
        for options, cache in zip(passes, caches, strict=True):
            # All but the last give way to it: what waits for a service must not wait for long.
            nice = ["nice", "-n", "5"] if cache != caches[-1] else []
            said = everything.enter_context(TemporaryFile()) if running else None
            process = subprocess.Popen(
                [*nice, *_command(options, cache, seed)],
                cwd=root,
                env=_environ(),
                stdout=said,
                stderr=said,
            )
            running.append((everything.enter_context(process), said))
        try:
            for each, output in running:
                codes.append(each.wait())
                if output is not None:
                    output.seek(0)
                    print(output.read().decode("utf-8", "replace"), flush=True)
        except KeyboardInterrupt:
            # Ctrl-C reached each pytest too, which stops its servers and says what it has seen.
            raise SystemExit(130) from None
    return codes


def _command(options: tuple[str, ...], cache: Path, seed: int) -> list[str]:
    seeded = f"--randomly-seed={seed}"
    return [sys.executable, "-m", "pytest", *options, seeded, "-o", f"cache_dir={cache}"]


def _environ() -> Mapping[str, str]:
    """Return this environment; of hundreds of processes none compiles what another has."""
    return {name: os.environ[name] for name in os.environ if name != "PYTHONDONTWRITEBYTECODE"}


def _read(file: Path) -> list[str]:
    return [*json.loads(file.read_text())] if file.exists() else []


def _write(file: Path, failed: Sequence[str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(dict.fromkeys(failed, True)))


def _what_failed(passes: Passes, codes: list[int], failed: Sequence[str], seed: int) -> str:
    """Return one line: the tests that failed, and the command that runs just these."""
    broken = [
        f"pytest {' '.join(options)} (exit code {code})"
        for options, code in zip(passes, codes, strict=True)
        if code not in (0, _TESTS_FAILED)
    ]
    names = failed[:_AT_MOST_NAMED]
    more = f" and {len(failed) - len(names)} more" if len(failed) > len(names) else ""
    parts = [
        *([f"{len(failed)} failed: {', '.join(names)}{more}"] if failed else []),
        *([f"did not finish: {', '.join(broken)}"] if broken else []),
    ]
    just = f"; run just these: .venv/bin/pytest --last-failed --randomly-seed={seed}"
    return "; ".join(parts) + (just if failed else f"; the same order again: make test SEED={seed}")


if __name__ == "__main__":
    sys.exit(main())
