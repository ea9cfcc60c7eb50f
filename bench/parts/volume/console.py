"""Every page of the console over a million deliveries and a million records: the server's time.

In this process, from the request to the last byte of the page; the browser's time is left out.
`pages` says which are visited.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from flask.testing import FlaskClient

from app.api.http.services import EXTENSION
from app.web import create_app
from bench.datasets import company
from bench.figures import Bound, Figure, Reach, median, percentile
from bench.lab import Lab
from bench.parts.volume import pages
from bench.parts.volume.pages import HERE, Visit
from bench.processes import BenchError
from bench.scale import Scale

_QUICK = Reach(at_most=100)


def run(lab: Lab, scale: Scale) -> Iterator[Figure]:
    """Time every page for a tenant with a long past, beside a page that shows nothing of it."""
    with lab.migrated() as (settings, database):
        began = time.perf_counter()
        made = company.make(lab, settings, database, scale)
        filled = time.perf_counter() - began
        yield Figure(f"a tenant with {scale.records} records filled in", filled, " s")
        app = create_app(replace(settings, log_level="WARNING"))
        try:
            client = _signed_in(app.test_client(), made.key)
            visits = pages.visits(app, client, database, made)
            bound: Bound | None = None
            for name, visit in visits.items():
                times = [_timed(client, visit, n) for n in range(scale.repeats)]
                figure = _figure(f"{name}, {scale.records} deliveries and records", times, bound)
                bound = bound or Bound(name, figure.value)
                yield figure
        finally:
            app.extensions[EXTENSION].close()


def _figure(name: str, times: Sequence[float], bound: Bound | None) -> Figure:
    note = f"p50 {median(times):.1f}, worst {max(times):.1f} ms"
    return Figure(f"{name}, p95", percentile(times, 95), " ms", bound, _QUICK, note)


def _timed(client: FlaskClient, visit: Visit, number: int) -> float:
    path = visit.paths[number % len(visit.paths)]
    began = time.perf_counter()
    if visit.form is None:
        answer = client.get(path)
    else:
        answer = client.post(path, data=visit.form, headers=HERE)
    took = (time.perf_counter() - began) * 1000
    # A search that finds one thing leads to it.
    leads_on = answer.status_code == 303 and "sign-in" not in answer.headers["Location"]
    if answer.status_code != 200 and not leads_on:
        raise BenchError(f"{path} answers {answer.status_code}")
    return took


def _signed_in(client: FlaskClient, key: str) -> FlaskClient:
    answer = client.post("/console/sign-in", data={"key": key}, headers=HERE)
    if answer.status_code != 303:
        raise BenchError(f"signing in answers {answer.status_code}")
    return client
