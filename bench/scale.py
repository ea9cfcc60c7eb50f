"""How much is measured: enough to trust, or enough to see that the bench itself works."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """Counts and seconds of all parts."""

    deliveries: int
    findings: int
    rounds: int
    threads_tried: tuple[int, ...]
    seconds: float
    samples: int
    dead: tuple[int, ...]
    slow_seconds: tuple[float, ...]
    slow_webhooks: int
    backlogs: tuple[int, ...]
    pasts: tuple[int, ...]
    snapshot: int
    records: int
    repeats: int
    webhooks: int
    tenants: int
    idle_seconds: float
    entries: int
    anchors: int
    keys: int


FULL = Scale(
    deliveries=10_000,
    findings=10_000,
    rounds=3,
    threads_tried=(2, 4, 8),
    seconds=3.0,
    samples=200,
    dead=(0, 20, 60),
    slow_seconds=(0.5, 0.9, 1.2, 5.0),
    slow_webhooks=98,
    backlogs=(1_000, 100_000, 1_000_000),
    pasts=(1_000, 1_000_000, 10_000_000),
    snapshot=420_000,
    records=1_000_000,
    repeats=40,
    webhooks=100,
    tenants=1_000,
    idle_seconds=10.0,
    entries=20_000,
    anchors=60,
    keys=5_000,
)
QUICK = Scale(
    deliveries=2_000,
    findings=1_000,
    rounds=1,
    threads_tried=(4,),
    seconds=1.5,
    samples=40,
    dead=(0, 20),
    slow_seconds=(0.5,),
    slow_webhooks=40,
    backlogs=(1_000, 30_000),
    pasts=(1_000, 30_000),
    snapshot=70_000,
    records=30_000,
    repeats=10,
    webhooks=20,
    tenants=100,
    idle_seconds=4.0,
    entries=2_000,
    anchors=10,
    keys=500,
)
