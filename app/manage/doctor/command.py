"""The command `python -m app.manage doctor`."""

import argparse

from app.manage.doctor import findings, report, running
from app.manage.doctor.checks import CHECKS
from app.manage.doctor.context import Context
from app.manage.doctor.running import Results
from app.manage.service import service
from app.settings import SettingError, environment

SETTINGS_UNREADABLE = 2


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options to the parser of `doctor`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    results, status = _examine()
    if arguments.json:
        print(report.as_json(results))
    else:
        for line in report.lines(results):
            print(line)
    return status


def _examine() -> tuple[Results, int]:
    """Return what was found, and the exit status."""
    try:
        with service() as (settings, database):
            context = Context(settings, database, environment())
            try:
                results = running.run(context, CHECKS)
            finally:
                context.close()
            return results, report.exit_status(results)
    except SettingError as error:
        found = findings.failed(str(error), "correct that variable", see="#settings")
        return {"settings": [found]}, SETTINGS_UNREADABLE
