"""`python -m jobs`: Dramatiq's command line for `jobs.worker`, with JSON logs of the main process.

The arguments are Dramatiq's own, without a module.
"""

import sys

from dramatiq import cli

from app.lib import json_lines


def main(arguments: list[str]) -> int:
    """Run the worker processes until they are stopped; return the exit status."""
    json_lines.begin()
    parser = cli.make_argument_parser()  # type: ignore[no-untyped-call]
    parsed = parser.parse_args(["jobs.worker", "--skip-logging", *arguments])
    # On SIGHUP, Dramatiq executes this command line again.
    sys.argv = [sys.executable, "-m", "jobs", *arguments]
    return int(cli.main(parsed) or 0)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
