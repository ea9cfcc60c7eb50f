"""The parts of the bench that could lie: its arithmetic, and the load that it sends."""

import math
import subprocess
import sys
import time
from collections import Counter

import pytest

from bench.figures import Bound, Figure, Reach, percentile
from bench.processes import cpu_seconds
from bench.traffic import load
from bench.traffic.load import NUMBER, Plan
from tests.support.servers.receivers import Receiver, Request, http_answer

HEAD = load.head("POST", "/things", [("Authorization", "Bearer key")])


def test_a_figure_says_whether_it_reaches_what_it_is_to_reach() -> None:
    least = Reach(at_least=1.5, of_ratio=True)
    good = Figure("name", 300, "/s", Bound("peer", 200), least)
    bad = Figure("name", 299, "/s", Bound("peer", 200), least)
    assert good.line().endswith("[reaches ratio ≥ 1.50]")
    assert bad.line().endswith("[MISSES ratio ≥ 1.50]")
    assert (good.as_json()["reached"], bad.as_json()["reached"]) == (True, False)


def test_a_percentile_is_a_value_that_was_measured() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert [percentile(values, percent) for percent in (0, 1, 50, 99, 100)] == [1, 1, 50, 99, 100]
    assert percentile([7.0], 99) == 7.0
    assert math.isnan(percentile([], 50))


@pytest.mark.parametrize(("count", "processes"), [(1, 2), (7, 2), (10, 3), (2, 4), (500, 1)])
def test_shares_of_a_plan_are_the_whole_plan_and_no_number_is_sent_twice(
    count: int, processes: int
) -> None:
    plan = Plan(1, HEAD, b"", connections=8, first=5, count=count, rate=30.0)
    shares = load.share(plan, processes)
    numbers = [each.first + place for each in shares for place in range(each.count or 0)]
    assert sorted(numbers) == list(range(5, 5 + count))
    assert sum(each.rate or 0 for each in shares) == pytest.approx(30.0)


def test_a_plan_sends_each_request_once_over_kept_connections() -> None:
    with Receiver(http_answer(201, b"{}")) as receiver:
        plan = Plan(receiver.port, HEAD, b'{"number": ' + NUMBER + b"}", connections=3, count=50)
        tally = load.drive(plan)
        assert receiver.connections == 3
        sent = Counter(request.body for request in receiver.requests)
        assert sent == Counter(b'{"number": %09d}' % each for each in range(50))
        assert receiver.requests[0].headers["authorization"] == "Bearer key"
    assert sorted(each.number for each in tally.answers) == list(range(50))
    assert tally.refused == 0


def test_what_is_refused_is_counted_and_quoted_and_is_no_answer() -> None:
    with Receiver(http_answer(429, b"not so fast")) as receiver:
        tally = load.drive(Plan(receiver.port, HEAD, b"{}", connections=1, count=3))
    assert (tally.answers, tally.refused) == ([], 3)
    assert tally.refusal == "429 b'not so fast'"
    assert tally.per_second == 0


def test_a_latency_counts_from_when_the_request_was_due_and_not_from_when_it_could_leave() -> None:
    def answer(_request: Request) -> bytes:
        time.sleep(0.02)
        return http_answer(200, b"{}")

    with Receiver(answer) as receiver:
        # Twice as many as one connection can carry: the last waits for half of all the time.
        plan = Plan(receiver.port, HEAD, b"{}", connections=1, count=20, rate=100.0)
        tally = load.drive(plan)
    assert min(tally.latencies_ms) >= 20
    assert max(tally.latencies_ms) >= 190


def test_a_server_that_goes_away_is_an_error_and_no_figure() -> None:
    with (
        Receiver(lambda _request: None) as receiver,
        pytest.raises(ConnectionError, match="closed the connection"),
    ):
        load.drive(Plan(receiver.port, HEAD, b"{}", connections=1, count=1))


PARENT = """
import subprocess, sys
burn = "import time\\nwhile time.process_time() < 0.3: pass"
subprocess.run([sys.executable, "-c", burn], check=True)
print("ended", flush=True)
sys.stdin.read()
"""


def test_what_a_process_used_that_has_ended_still_counts() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=pipe, stdout=pipe) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ended\n"
        used = cpu_seconds([parent.pid])
        parent.communicate()
    # The kernel counts whole ticks of a hundredth, the user's and the system's apart.
    assert used >= 0.25
