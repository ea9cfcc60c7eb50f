"""`make test`: every test, in two passes, and a last line that says what failed.

Whole services mostly wait, so more of them run at once, and each file's tests share one.
"""

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
Passes = Sequence[tuple[str, ...]]
PASSES: Passes = (
    ("-m", "not stacks", "-n", "2", "--dist", "worksteal"),
    ("-m", "stacks", "-n", "3", "--dist", "loadfile"),
)
FAILED = Path(".pytest_cache/v/cache/lastfailed")
_AT_MOST_NAMED = 5
# pytest's exit code where tests failed; every other means that the pass did not finish.
_TESTS_FAILED = 1


def main() -> int:
    """Run both passes over all tests; return 0 if both passed."""
    parser = argparse.ArgumentParser(prog="python -m tests", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    return run(PASSES, parser.parse_args().seed, ROOT)


def run(passes: Passes, seed: int, root: Path) -> int:
    """Run each pass in `root`, whatever came of the one before; return 0 if all passed."""
    (root / FAILED).unlink(missing_ok=True)
    codes = [_run(options, seed, root) for options in passes]
    if not any(codes):
        print("make test: everything passed", flush=True)
        return 0
    print(f"make test: {_what_failed(passes, codes, seed, root)}", flush=True)
    return 1


def _run(options: tuple[str, ...], seed: int, root: Path) -> int:
    command = [sys.executable, "-m", "pytest", *options, f"--randomly-seed={seed}"]
    with subprocess.Popen(command, cwd=root) as running:
        try:
            return running.wait()
        except KeyboardInterrupt:
            # Ctrl-C reached pytest too, which stops its servers and says what it has seen.
            running.wait()
            raise SystemExit(130) from None


def _what_failed(passes: Passes, codes: list[int], seed: int, root: Path) -> str:
    """Return one line: the tests that failed, and the command that runs just these."""
    failed = json.loads((root / FAILED).read_text()) if (root / FAILED).exists() else {}
    broken = [
        f"pytest {' '.join(options)} (exit code {code})"
        for options, code in zip(passes, codes, strict=True)
        if code not in (0, _TESTS_FAILED)
    ]
    names = [*failed][:_AT_MOST_NAMED]
    more = f" and {len(failed) - len(names)} more" if len(failed) > len(names) else ""
    parts = [
        *([f"{len(failed)} failed: {', '.join(names)}{more}"] if failed else []),
        *([f"did not finish: {', '.join(broken)}"] if broken else []),
    ]
    just = f"; run just these: .venv/bin/pytest --last-failed --randomly-seed={seed}"
    return "; ".join(parts) + (just if failed else f"; the same order again: make test SEED={seed}")


if __name__ == "__main__":
    sys.exit(main())
