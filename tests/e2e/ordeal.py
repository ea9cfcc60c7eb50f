"""One ordeal: findings are posted throughout, something goes wrong for a while, the books close."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tests.e2e import books
from tests.e2e.books import Closed
from tests.e2e.misfortune import House, Misfortune, suffer
from tests.e2e.stack import Caller, Hook
from tests.e2e.traffic import Neighbour, Traffic

# Short waits, so that what failed is tried again while the test still looks on.
SETTINGS = {"RETRY_SCHEDULE": ",".join(["0", *["1"] * 19]), "PAUSE_SECONDS": "1"}

_SKIPPED = 30
_REPLAYS_A_SECOND = 10


@dataclass(frozen=True)
class Neighbourhood:
    """A tenant whose events go to several receivers, each with its own ways."""

    house: House
    caller: Caller
    key: str
    session_id: str
    lanes: Sequence[tuple[Hook, Neighbour]]

    @property
    def neighbours(self) -> list[Neighbour]:
        """The receivers."""
        return [neighbour for _, neighbour in self.lanes]

    def traffic(self, **options: float) -> Traffic:
        """Return traffic of this tenant's, to be started."""
        return Traffic(self.house.stack.base_url, self.key, self.session_id, **options)  # type: ignore[arg-type]

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

    def close_books(self, findings: Sequence[str]) -> Closed:
        """Wait until every book closes; fail if one does not."""
        return books.close(self.caller, self.house.admin_url, self.lanes, findings)


@contextmanager
def neighbourhood(house: House) -> Iterator[Neighbourhood]:
    """Make a tenant with a prompt receiver, a leisurely one, and one that fails now and then."""
    caller = house.stack.fresh_tenant()
    neighbours = [
        Neighbour("the prompt"),
        Neighbour("the leisurely", delay=0.05),
        Neighbour("the moody", fails_every=9),
    ]
    lanes = [(caller.webhook(neighbour), neighbour) for neighbour in neighbours]
    key = caller.post("/v1/keys", {"name": "poster", "role": "write"})["key"]
    yield Neighbourhood(house, caller, key, caller.session(), lanes)
    for hook, neighbour in lanes:
        caller.delete(hook.path)
        neighbour.close()


def undergo(
    house: House,
    seconds: float,
    *misfortunes: Misfortune,
    also: Callable[[Neighbourhood], Sequence[Misfortune]] = lambda _: (),
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
        closed = place.close_books(skipped + traffic.accepted)
    names = ", ".join(each.name for each in all_of_it)
    print(f"\n{names}: {closed}; requests repeated: {dict(traffic.repeats)}", flush=True)
    return closed
