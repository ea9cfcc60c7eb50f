"""Whether the books close: nothing accepted is lost, nothing is left held, and all figures agree.

Three witnesses are asked. The service says what it accepted and what became of it; the rows,
counted by the database's owner, must say the same; and the neighbour has every sequence number and
every finding, or something was lost.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import dict_row

from app import ids
from tests.e2e.harness.stack import Caller, Hook
from tests.e2e.harness.traffic import Neighbour, Traffic

# A guard, no measure: a lease of thirty seconds, and some seconds of work.
CLOSES_WITHIN = 180.0
_ASK_AGAIN_SECONDS = 0.25

_Row = dict[str, Any]

_KINDS = ("event", "replay", "test")
_ENDS = ("succeeded", "failed", "cancelled")
_TOTALS = [(kind, end) for kind in _KINDS for end in _ENDS]

_LANE = f"""
SELECT tenant_id, next_sequence - 1 AS numbered, {", ".join(f"{k}s_{e}" for k, e in _TOTALS)},
       (SELECT count(*) FROM unnest(l.slot_leases) AS lease
         WHERE lease > clock_timestamp()) AS slots_held,
       (SELECT count(*) FROM jobs AS j
         WHERE j.tenant_id = l.tenant_id AND status <> 'succeeded') AS jobs
  FROM lanes AS l WHERE webhook_id = %(webhook)s
"""

_COUNTS = ", ".join(
    f"count(*) FILTER (WHERE kind = '{kind}' AND status = '{end}') AS {kind}s_{end}"
    for kind, end in _TOTALS
)
_ROWS = f"""
SELECT {_COUNTS},
       count(*) FILTER (WHERE finished_at IS NULL) AS open,
       count(*) FILTER (WHERE kind = 'event') AS events,
       count(DISTINCT sequence) FILTER (WHERE kind = 'event') AS numbers,
       coalesce(max(sequence) FILTER (WHERE kind = 'event'), 0) AS last_number,
       coalesce(sum(attempts), 0) AS attempts,
       (SELECT count(*) FROM delivery_attempts
         WHERE delivery_id IN (SELECT id FROM deliveries WHERE webhook_id = %(webhook)s)) AS history
  FROM deliveries WHERE webhook_id = %(webhook)s
"""


@dataclass(frozen=True)
class Closed:
    """How the books of a tenant's webhooks closed."""

    seconds: float
    accepted: int
    taken: int
    duplicates: int

    def __str__(self) -> str:
        return (
            f"closed after {self.seconds:.1f} s: {self.accepted} accepted, {self.taken} taken,"
            f" {self.duplicates} of them duplicates"
        )


@dataclass(frozen=True)
class Tenant:
    """A tenant whose events go to a prompt receiver, a leisurely one, and one that fails at times.

    `lanes` are all its webhooks, each with its receiver.
    """

    caller: Caller
    admin_url: str
    session_id: str
    lanes: Sequence[tuple[Hook, Neighbour]]

    @property
    def neighbours(self) -> list[Neighbour]:
        """The receivers."""
        return [neighbour for _, neighbour in self.lanes]

    def traffic(self, base_url: str | None = None) -> Traffic:
        """Return traffic of this tenant's, by way of one `web`, to be started."""
        return Traffic(base_url or self.caller.base_url, self.caller.key, self.session_id)

    def close_books(self, findings: Sequence[str], within: float = CLOSES_WITHIN) -> Closed:
        """Wait until every book closes; fail with all that is still wrong after `within` seconds.

        Each receiver wanted `findings`.
        """
        began = time.monotonic()
        while wrong := list(_wrong(self, findings)):
            waited = time.monotonic() - began
            assert waited < within, f"after {waited:.0f} s: " + "; ".join(wrong)
            time.sleep(_ASK_AGAIN_SECONDS)
        seconds = time.monotonic() - began
        audit = self.caller.get("/v1/audit/verify")
        assert audit["status"] == "intact", audit
        return Closed(
            seconds,
            sum(_accepted(hook.books()) for hook, _ in self.lanes),
            sum(neighbour.taken.total() for neighbour in self.neighbours),
            sum(neighbour.duplicates for neighbour in self.neighbours),
        )


@contextmanager
def tenant(caller: Caller, admin_url: str, host: str = "127.0.0.1") -> Iterator[Tenant]:
    """Make the webhooks of a caller's tenant, whose receivers listen on `host` for the `with`."""
    with ExitStack() as listening:
        neighbours = [
            listening.enter_context(each)
            for each in (
                Neighbour("the prompt", host=host),
                Neighbour("the leisurely", delay=0.05, host=host),
                Neighbour("the moody", fails_every=9, host=host),
            )
        ]
        lanes = [(caller.webhook(neighbour), neighbour) for neighbour in neighbours]
        yield Tenant(caller, admin_url, caller.session(), lanes)


def _accepted(books: dict[str, Any]) -> int:
    return int(sum(line["accepted"] for line in (books, books["replays"], books["tests"])))


def _wrong(tenant: Tenant, findings: Sequence[str]) -> Iterator[str]:
    """Yield all that is not yet as it should be in the end."""
    with psycopg.connect(tenant.admin_url, row_factory=dict_row) as connection:
        for hook, neighbour in tenant.lanes:
            books = hook.books()
            # At every moment, not only at the end: one statement reads all of it.
            assert (books["balanced"], books["counted"]) == (True, True), books
            webhook = {"webhook": ids.parse("whk", hook.id)}
            (lane,) = connection.execute(_LANE, webhook).fetchall()
            (rows,) = connection.execute(_ROWS, webhook).fetchall()
            for complaint in (
                *_left_over(lane, rows),
                *_disagreements(books, lane, rows),
                *_missing(neighbour, rows, findings),
            ):
                yield f"{neighbour.name}: {complaint}"


def _left_over(lane: _Row, rows: _Row) -> Iterator[str]:
    if rows["open"]:
        yield f"{rows['open']} deliveries are open"
    if lane["slots_held"]:
        yield f"{lane['slots_held']} slots are held"
    if lane["jobs"]:
        yield f"{lane['jobs']} jobs have not succeeded"


def _disagreements(books: dict[str, Any], lane: _Row, rows: _Row) -> Iterator[str]:
    for kind, end in _TOTALS:
        told = (books if kind == "event" else books[f"{kind}s"])[end]
        total, counted = lane[f"{kind}s_{end}"], rows[f"{kind}s_{end}"]
        if not told == total == counted:
            yield f"{kind}s {end}: told {told}, total {total}, counted {counted}"
    names = ("events", "numbers", "last_number")
    figures = [books["accepted"], lane["numbered"], *(rows[name] for name in names)]
    if len(set(figures)) != 1:
        yield f"accepted, numbered, {', '.join(names)}: {', '.join(map(str, figures))}"
    if rows["attempts"] != rows["history"]:
        yield f"{rows['attempts']} attempts, {rows['history']} in the history"


def _missing(neighbour: Neighbour, rows: _Row, findings: Sequence[str]) -> Iterator[str]:
    given = set(range(1, rows["last_number"] + 1))
    if gaps := given - neighbour.sequences:
        yield f"{len(gaps)} sequence numbers did not arrive, such as {min(gaps)}"
    if strange := neighbour.sequences - given:
        yield f"{len(strange)} sequence numbers arrived that nobody gave, such as {min(strange)}"
    if unseen := set(findings) - neighbour.findings.keys():
        yield f"{len(unseen)} accepted findings did not arrive"
