"""One scrape of a whole stack: real web, worker and scheduler processes, while one is killed."""

from collections import Counter

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from app.settings import VERSION
from tests.e2e.harness.stack import RunningStack
from tests.e2e.harness.web import TOKEN
from tests.support.faults import LONG_ENOUGH, until
from tests.support.servers.receivers import OK, Receiver, Request, http_answer

pytestmark = pytest.mark.stacks

GROWING = ("_total", "_count", "_bucket", "_sum")
# Guards: a process writes what it has counted every five seconds; a lease lasts thirty.
WRITTEN_SECONDS = 90.0
LEASE_SECONDS = 180.0

Sample = tuple[str, frozenset[tuple[str, str]]]


class Scraper:
    """Asks for `/metrics` as Prometheus does, and lets no counter go back."""

    def __init__(self, base_url: str) -> None:
        self._base_url = base_url
        self._seen: dict[Sample, float] = {}

    def value(self, name: str, **labels: str) -> float:
        """Return the sum of a name's figures that have these labels, as they are now."""
        now = self._scrape()
        return sum(
            value for (each, held), value in now.items() if each == name and labels.items() <= held
        )

    def processes(self) -> dict[str, int]:
        """Return how many processes of each role report, with one scheduler that leads."""
        now = self._scrape()
        assert now["record_service_release_info", frozenset({("version", VERSION)})] == 1
        roles = [
            dict(labels)["process"]
            for (name, labels), memory in now.items()
            if name == "record_service_process_resident_memory_bytes" and memory > 1 << 20
        ]
        leads = sum(v for (name, _), v in now.items() if name == "record_service_scheduler_leader")
        return dict(Counter(roles)) if leads == 1 else {}

    def _scrape(self) -> dict[Sample, float]:
        # A connection for each: so either web process may answer.
        answer = requests.get(
            f"{self._base_url}/metrics",
            headers={"Authorization": f"Bearer {TOKEN}"},
            timeout=LONG_ENOUGH,
        )
        assert answer.status_code == 200, answer.text
        now = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        }
        for sample, value in self._seen.items():
            if sample[0].endswith(GROWING):
                assert now[sample] >= value, sample
        self._seen = now
        return now


def _until_ended(scraper: Scraper, count: int) -> None:
    ended = {"kind": "event", "status": "succeeded"}
    until(
        lambda: scraper.value("record_service_deliveries_total", **ended) == count, WRITTEN_SECONDS
    )


def test_a_scrape_shows_the_work_of_all_processes_and_survives_their_death(
    stack: RunningStack,
) -> None:
    caller = stack.fresh_tenant()
    scraper = Scraper(stack.base_url)
    answers = iter([http_answer(404)] * 3)
    began = []

    def answer(request: Request) -> bytes:
        began.append(request)
        return next(answers, OK)

    with Receiver(answer) as receiver:
        hook = caller.webhook(receiver)
        caller.findings(caller.session(), 40)
        assert hook.settled()["succeeded"] == 40
        until(lambda: scraper.value("record_service_attempts_total") == 43, WRITTEN_SECONDS)
        assert scraper.value("record_service_attempts_total", code="4xx") == 3
        assert scraper.value("record_service_claims_total") >= 43
        assert scraper.value("record_service_attempt_duration_seconds_count") == 43
        assert scraper.value("record_service_delivery_delay_seconds_count", kind="event") == 40
        _until_ended(scraper, 40)
        assert scraper.value("http_requests_total", route="/v1/findings/batch") == 1

        until(
            lambda: scraper.processes() == {"web": 2, "worker": 2, "scheduler": 1}, WRITTEN_SECONDS
        )
        assert scraper.value("record_service_attempt_phase_duration_seconds_count") >= 43

        swept = scraper.value("record_service_sweeps_total")
        stack.kill_worker()
        stack.flush_redis()
        caller.findings(caller.session(), 10)
        assert hook.settled(LEASE_SECONDS)["succeeded"] == 50
        until(lambda: scraper.value("record_service_sweeps_total") > swept, WRITTEN_SECONDS)
        _until_ended(scraper, 50)
        until(lambda: scraper.value("record_service_lanes_due") == 0)
        until(lambda: scraper.value("record_service_up") == 5, WRITTEN_SECONDS)
        assert scraper.value("record_service_attempts_total") == len(began)
