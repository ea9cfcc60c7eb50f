"""One ordeal: findings are posted throughout, something goes wrong for a while, the books close."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

import psycopg

from app import ids
from tests.e2e.harness.books import CLOSES_WITHIN, Closed, Tenant, tenant
from tests.e2e.harness.elsewhere import OtherWorker
from tests.e2e.harness.misfortune import House, Misfortune, suffer
from tests.e2e.harness.stack import TWO_OF_EACH
from tests.support.faults import until

# Short waits, so that what failed is tried again while the test still looks on.
SETTINGS = {
    "RETRY_SCHEDULE": ",".join(["0", *["1"] * 19]),
    "PAUSE_SECONDS": "1",
    **TWO_OF_EACH,
}

_SKIPPED = 30
_CUT_OFF_SECONDS = 40.0
_AT_WORK_SECONDS = 60.0
_REPLAYS_A_SECOND = 10


_HELD = "SELECT id, claim_no FROM deliveries WHERE webhook_id = ANY(%s) AND status = 'sending'"


@dataclass(frozen=True)
class Neighbourhood(Tenant):
    """A tenant in a house, and what befalls its receivers."""

    house: House

    def skip_some(self) -> list[str]:
        """Add findings while the first webhook is disabled; return their ids."""
        hook, _ = self.lanes[0]
        self.caller.patch(hook.path, {"status": "disabled"})
        added = self.caller.findings(self.session_id, _SKIPPED)
        self.caller.patch(hook.path, {"status": "enabled"})
        return [finding["id"] for finding in added]

    def replay_skipped(self) -> None:
        """Have a job send the first webhook what it did not get."""
        body = {"status": "skipped", "rate": _REPLAYS_A_SECOND}
        self.caller.post(f"{self.lanes[0][0].path}/replay", body, 202)

    def worker_cut_off(self, *, alone: bool = False) -> Misfortune:
        """Cut the other host off, in the middle of its work, for longer than a lease lasts.

        If nothing else happens (`alone`), it lasts until others have taken over all that it held.
        """
        return Misfortune(
            "a worker host cut off",
            least=_CUT_OFF_SECONDS,
            lasting=lambda: self._worker_cut_off(alone=alone),
        )

    @contextmanager
    def _worker_cut_off(self, *, alone: bool) -> Iterator[None]:
        other = self.house.other
        assert other is not None
        until(lambda: self._in_hand_of(other), _AT_WORK_SECONDS)
        with other.host.cut_off():
            held = self._held()
            yield
            if alone:
                until(lambda: not held & self._held(), CLOSES_WITHIN)
            left = held & self._held()
        print(f"\n{len(held)} rows held at a cut, {len(left)} of them by the same at its end")

    def _in_hand_of(self, other: OtherWorker) -> bool:
        other.require_alive()
        return any(neighbour.in_hand_of[other.address] for neighbour in self.neighbours)

    def _held(self) -> set[tuple[UUID, int]]:
        """Return the claims under which this tenant's rows are held now."""
        with psycopg.connect(self.admin_url) as connection:
            webhooks = [ids.parse("whk", hook.id) for hook, _ in self.lanes]
            return set(connection.execute(_HELD, (webhooks,)).fetchall())

    def wait_for_every_host(self) -> None:
        """Wait until the other host, if there is one, sends something again."""
        if (other := self.house.other) is not None:
            before = self._arrived_from(other)
            until(lambda: self._arrived_from(other) > before, _AT_WORK_SECONDS)

    def _arrived_from(self, other: OtherWorker) -> int:
        other.require_alive()
        return sum(neighbour.arrived_from[other.address] for neighbour in self.neighbours)


@contextmanager
def neighbourhood(house: House) -> Iterator[Neighbourhood]:
    """Make a tenant with its receivers."""
    with tenant(house.stack.fresh_tenant(), house.admin_url, house.address) as made:
        yield Neighbourhood(made.caller, made.admin_url, made.session_id, made.lanes, house)
        for hook, _ in made.lanes:
            made.caller.delete(hook.path)


def undergo(
    house: House,
    seconds: float,
    *misfortunes: Misfortune,
    also: Callable[[Neighbourhood], Sequence[Misfortune]] = lambda _: (),
    within: float = CLOSES_WITHIN,
) -> Closed:
    """Let misfortunes happen while a new tenant's findings are posted, and close its books.

    `also` makes those that befall the tenant's own receivers.
    """
    with neighbourhood(house) as place:
        all_of_it = (*misfortunes, *also(place))
        skipped = place.skip_some()
        with place.traffic() as traffic:
            place.replay_skipped()
            suffer(seconds, *all_of_it)
            place.wait_for_every_host()
        closed = place.close_books(skipped + traffic.accepted, within)
    names = ", ".join(each.name for each in all_of_it)
    print(f"\n{names}: {closed}; requests repeated: {dict(traffic.repeats)}", flush=True)
    return closed
