"""What every route works with: the settings, the database and the bell of this application."""

from dataclasses import dataclass

from flask import current_app

from app.database import Database
from app.queue import Bell
from app.settings import Settings

EXTENSION = "record-service"


@dataclass(frozen=True)
class Services:
    """The parts that `create_app` opened, shared by all requests of the process."""

    settings: Settings
    database: Database
    bell: Bell

    def close(self) -> None:
        """Close every connection of this process to PostgreSQL and Redis."""
        self.database.close()
        self.bell.close()


def services() -> Services:
    """Return the parts of the application that serves this request."""
    found = current_app.extensions[EXTENSION]
    assert isinstance(found, Services)  # noqa: S101  # narrows Flask's untyped dict
    return found
