"""How many POSTs a lane may have out: grown by good answers, halved by overload."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.delivery.lanes.lane_health import (
    CLAIM_MOST,
    Concurrency,
    claim_size,
    concurrency_after,
)
from app.core.delivery.retries import Attempted, Blame, Verdict

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
FRESH = Concurrency()
MOST = 16


def attempt(verdict: Verdict, status_code: int | None, total_ms: float | None = 5.0) -> Attempted:
    return Attempted(
        number=1,
        verdict=verdict,
        probe=False,
        started_at=NOW,
        ended_at=NOW,
        status_code=status_code,
        total_ms=total_ms,
    )


GOOD = attempt(Verdict("succeeded", Blame.NOBODY), 200)
TIMEOUT = attempt(Verdict("retrying", Blame.ENDPOINT), None, 15_000.0)
TOO_MANY = attempt(Verdict("retrying", Blame.ENDPOINT), 429)
BROKEN = attempt(Verdict("retrying", Blame.ENDPOINT), 500)
NOT_FOUND = attempt(Verdict("retrying", Blame.DELIVERY), 404)
LOST = attempt(Verdict("retrying", Blame.US), None, None)
LATER = NOW + timedelta(seconds=20)


def test_slow_start_counts_answers_and_not_batches() -> None:
    assert concurrency_after(FRESH, [GOOD] * 5, MOST, NOW).concurrency == 11


@pytest.mark.parametrize(
    "failure", [TIMEOUT, TOO_MANY, *(replace(TOO_MANY, status_code=s) for s in (502, 503, 504))]
)
def test_overload_halves_once_a_batch_whatever_else_is_in_it(failure: Attempted) -> None:
    known = concurrency_after(Concurrency(MOST), [GOOD, failure, GOOD, failure], MOST, NOW)
    assert (known.concurrency, known.halved_at) == (MOST // 2, NOW)


def test_posts_that_were_out_together_and_fail_one_by_one_halve_once() -> None:
    known = Concurrency(MOST)
    for second in range(MOST):
        known = concurrency_after(known, [TIMEOUT], MOST, NOW + timedelta(seconds=15 + second))
    assert known.concurrency == MOST // 2
    again = replace(TIMEOUT, started_at=LATER)
    assert (
        concurrency_after(known, [again], MOST, LATER + timedelta(seconds=15)).concurrency
        == MOST // 4
    )


def test_the_latency_follows_a_receiver_that_drifts_within_a_few_answers() -> None:
    known = concurrency_after(FRESH, [GOOD], MOST, NOW)
    assert known.latency_ms == 5.0
    slow = replace(GOOD, total_ms=1100.0)
    known = concurrency_after(known, [slow] * 3, MOST, NOW)
    assert claim_size(known.latency_ms) == 1
    known = concurrency_after(known, [GOOD] * 30, MOST, NOW)
    assert claim_size(known.latency_ms) == CLAIM_MOST


@pytest.mark.parametrize(
    ("latency_ms", "rows"),
    [(None, 1), (0.0, 50), (1.0, 50), (10.0, 50), (50.0, 10), (100.0, 5), (500.0, 1), (9e6, 1)],
)
def test_a_claim_is_what_can_be_sent_in_half_a_second(latency_ms: float, rows: int) -> None:
    assert claim_size(latency_ms) == rows


@given(
    st.lists(
        st.lists(
            st.sampled_from([GOOD, TIMEOUT, TOO_MANY, BROKEN, NOT_FOUND, LOST]),
            max_size=20,
        ),
        max_size=40,
    ),
    st.integers(1, 64),
)
def test_no_history_allows_less_than_one_or_more_than_max_in_flight(
    batches: list[list[Attempted]], most: int
) -> None:
    known = FRESH
    for number, batch in enumerate(batches):
        at = NOW + timedelta(seconds=number)
        known = concurrency_after(known, [replace(a, started_at=at) for a in batch], most, at)
        assert 1 <= known.concurrency <= most
        assert known.latency_ms is None or 0 <= known.latency_ms <= 15_000
