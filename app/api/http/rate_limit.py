"""Rate limits, counted in this process's memory.

A shared counter in Redis would make its loss an outage, so a deployment's limit is this one times
its web processes. Requests count by API key and by tenant; without a key by client address (IPv6 by
/64, since one host owns that many).
"""

from dataclasses import dataclass
from typing import Self, cast

from flask import current_app, g, request

from app.api.http import promises
from app.api.http.services import client_network
from app.core.callers import Caller
from app.errors import RateLimited
from app.lib.gateway.gateway import WAITED
from app.lib.rates import Counter, Rate, Spent
from app.settings import Settings

EXTENSION = "record-service-limits"

# 238 random bits cannot be guessed; this spares the database the lookups of a faulty client.
REFUSALS = Rate(1000, 60)
# Those that cost a lookup are counted by themselves too.
_LOOKED_UP = b"looked up "
# A person signs in now and then.
SIGN_INS = Rate(60, 60)


@dataclass(frozen=True)
class Limits:
    """The counters of one application."""

    keys: Counter
    tenants: Counter
    addresses: Counter
    refusals: Counter
    sign_ins: Counter

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return fresh counters with the rates of the settings."""
        return cls(
            Counter(settings.rate_limit, "by this API key"),
            Counter(settings.tenant_rate_limit, "by the keys of this tenant"),
            Counter(settings.address_rate_limit, "without a key from this address"),
            Counter(REFUSALS, "with invalid keys from this address"),
            Counter(SIGN_INS, "to sign in from this address"),
        )


def count_key(caller: Caller) -> None:
    """Count a request of a key, once; raises `RateLimited`."""
    if _was_counted("key"):
        return
    counters, times = _limits(), _times()
    spent = (
        counters.keys.hit(caller.key_id.bytes, times),
        counters.tenants.hit(caller.tenant_id.bytes, times),
    )
    if promises.on_loop():
        # A thread that makes this request again does not count it again.
        request.environ[WAITED] = True
    _spend(min(spent, key=_left))


def count_address() -> None:
    """Count a request by its client's address, once; raises `RateLimited`."""
    if not _was_counted("address"):
        _spend(_limits().addresses.hit(client_network().encode(), _times()))


def count_refusal(*, looked_up: bool) -> None:
    """Count a refused key; raises `RateLimited` when its client address has sent too many.

    A key that was not even `looked_up`, because no key is written so, keeps out no other.
    """
    refusals, network = _limits().refusals, client_network().encode()
    if looked_up:
        refusals.hit(_LOOKED_UP + network)
    _spend(refusals.hit(network))


def refuse_unknown_key() -> None:
    """Raise `RateLimited` if too many keys of this client's address were looked up in vain.

    A key that this process does not know then costs no look-up; a known one is not affected.
    """
    _refuse_spent(_limits().refusals, _LOOKED_UP)


def refuse_address() -> None:
    """Raise `RateLimited` if this client's address has sent too many requests without a key."""
    _refuse_spent(_limits().addresses)


def _refuse_spent(counter: Counter, kind: bytes = b"") -> None:
    spent = counter.hit(kind + client_network().encode(), 0)
    if spent.exceeded:
        _spend(spent)


def count_sign_in() -> None:
    """Count an attempt to sign in to the console, successful or not; raises `RateLimited`."""
    _spend(_limits().sign_ins.hit(client_network().encode(), _times()))


def headers() -> dict[str, str]:
    """Return the headers of the rate limit that this request was counted against."""
    spent: Spent | None = g.get("spent")
    return {} if spent is None else spent.headers()


def _left(spent: Spent) -> int:
    return spent.rate.limit - spent.count


def _spend(spent: Spent) -> None:
    """Raise if a rate limit is exceeded; the headers describe it."""
    g.spent = spent
    if spent.exceeded:
        raise RateLimited(
            f"More than {spent.rate.limit} requests {spent.scope} in {spent.rate.seconds} "
            f"seconds; come back in {spent.resets_in} seconds.",
            headers={"Retry-After": str(spent.resets_in), **spent.headers()},
        )


def _was_counted(by: str) -> bool:
    """Say whether this request was counted by its key, or address; from now on it is."""
    counted: set[str] = g.setdefault("counted", set())
    if by in counted:
        return True
    counted.add(by)
    return False


def _times() -> int:
    """Return 0 for a request that is made again after its wait; else 1."""
    return 0 if WAITED in request.environ else 1


def _limits() -> Limits:
    return cast(Limits, current_app.extensions[EXTENSION])
