"""Services shared by all routes: the connections and caches that this application opened."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from flask import current_app

from app import counters
from app.api.http.large_work import LargeWork
from app.api.http.responses.answers import Renderings
from app.core import findings
from app.core.audit.refusals import Refusals
from app.core.blobs import reading, store
from app.core.health import readiness
from app.core.health.readiness import Readiness
from app.core.keys.keyring import Keyring
from app.core.master_keys import key_registry
from app.core.records import intake as records_intake
from app.core.rules.evaluators import Evaluators
from app.core.traces.staging import Staging
from app.core.verification.verifier import Verifier
from app.database import Database
from app.lib.breaker import Breaker
from app.lib.fair_shares import Shares
from app.lib.metric_registry import Tally
from app.lib.openid_connect import Provider
from app.lib.repeater import Repeater
from app.queue import Bell
from app.settings import Settings

EXTENSION = "record-service"
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Services:
    """The services that `create_app` opened, shared by all requests of the process.

    `damage` bounds how often requests record damage of the log. By the `provider` people sign in to
    the console, if one is set.
    """

    settings: Settings
    database: Database
    bell: Bell
    tally: Tally
    counters: Repeater
    key_heartbeat: Repeater
    process_report: Repeater
    readiness: Readiness
    keyring: Keyring
    refusals: Refusals
    findings: findings.Intake
    records: records_intake.Intake
    verifier: Verifier
    damage: Breaker
    staging: Staging
    large: LargeWork
    evaluators: Evaluators
    answers: Shares
    renderings: Renderings
    provider: Provider | None

    def fetching(self, work: Callable[[], _Result]) -> _Result:
        """Do some work with transactions of its own, once what it reads in them is fetched."""
        return reading.fetching(store.of(self.settings.blob_url), work)

    def close(self) -> None:
        """Write the last counters and key uses, and close every connection."""
        if self.provider is not None:
            self.provider.close()
        self.evaluators.close()
        self.keyring.close()
        self.refusals.close()
        self.counters.close(counters.LAST_SECONDS)
        self.key_heartbeat.close(key_registry.LAST_SECONDS)
        self.process_report.close(readiness.LAST_SECONDS)
        self.readiness.close()
        self.database.close()
        self.bell.close()


def services() -> Services:
    """Return the services of the application that serves this request."""
    found = current_app.extensions[EXTENSION]
    assert isinstance(found, Services)  # noqa: S101  # narrows Flask's untyped dict
    return found
