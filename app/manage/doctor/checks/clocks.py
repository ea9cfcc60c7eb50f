"""Clock skew: this host's clock against PostgreSQL's and Redis's."""

from collections.abc import Callable, Iterator

from app.database import cursor
from app.manage.doctor import findings
from app.manage.doctor.context import Context
from app.manage.doctor.findings import Finding, NotChecked

WARN_SECONDS = 1.0
# Receivers refuse signatures dated more than five minutes off (Standard Webhooks).
FAIL_SECONDS = 60.0

_NOW = "SELECT extract(epoch FROM clock_timestamp())::float8"


def check(context: Context) -> Iterator[Finding]:
    """Yield one finding a store."""
    for name, ask in (("PostgreSQL", _of_database), ("Redis", _of_redis)):
        try:
            yield _judge(name, context, ask)
        except NotChecked as why:
            yield findings.not_checked(f"{name}'s clock: {why}")


def _judge(name: str, context: Context, ask: Callable[[Context], float]) -> Finding:
    # The first question may open a connection; of the second only the round trip is counted.
    ask(context)
    before = context.clock()
    theirs = ask(context)
    after = context.clock()
    round_trip = max(after - before, 0.0)
    skew = (before + after) / 2 - theirs
    # No more than what cannot be the way there and back.
    certain = max(abs(skew) - round_trip / 2, 0.0)
    where = "ahead of" if skew > 0 else "behind"
    text = f"this host's clock is {abs(skew):.1f} s {where} {name}'s"
    if certain > FAIL_SECONDS:
        return findings.failed(
            f"{text}: receivers refuse signatures that are five minutes off, and ids carry time",
            "timedatectl set-ntp true, on the host that is wrong",
            see="#deliveries-fail",
        )
    if certain > WARN_SECONDS:
        return findings.warning(text, "timedatectl set-ntp true, on the host that is wrong")
    return findings.ok(f"this host and {name} agree to within {certain + round_trip:.3f} s")


def _of_database(context: Context) -> float:
    with context.server() as session:
        row = cursor(session).execute(_NOW).fetchone()
    return float(row[0]) if row else 0.0


def _of_redis(context: Context) -> float:
    seconds, microseconds = context.redis(lambda client: client.time())
    return float(seconds + microseconds / 1e6)
