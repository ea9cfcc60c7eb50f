"""Log lines of servers and libraries as JSON, one object a line, as the service's own are.

For processes that must not load the service: the leaders of granian and Dramatiq. On a terminal
the lines are plain.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

# The handler that a process begins with; what sets up its logs later replaces it.
NAME = "record-service"


class JsonLines(logging.Formatter):
    """Formats a record as JSON with `event`, `level`, `timestamp`, `logger` and any `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line without its line break."""
        if sys.stdout.isatty():
            return super().format(record)
        moment = datetime.fromtimestamp(record.created, UTC).isoformat()
        line = {
            "event": record.getMessage(),
            "level": record.levelname.lower(),
            "timestamp": moment.replace("+00:00", "Z"),
            "logger": record.name,
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


class StandardOutput(logging.StreamHandler[TextIO]):
    """Writes to what standard output is at that moment; tests and supervisors replace it."""

    def __init__(self) -> None:
        """Take the name by which it is replaced."""
        logging.Handler.__init__(self)
        self.set_name(NAME)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]  # as logging's own handler for stderr
        """Standard output as it is now."""
        return sys.stdout


def begin() -> None:
    """Have every record from INFO on written as JSON, until the service sets up its own logs."""
    handler = StandardOutput()
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.captureWarnings(capture=True)
