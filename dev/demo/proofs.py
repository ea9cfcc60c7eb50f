"""The books and the audit chain, held against what was seen and recomputed."""

from typing import Any

from dev.demo.outsider import recompute_chain
from dev.demo.scene import Scene, Webhook
from dev.demo.telling import Unmet

_COLUMNS = ("accepted", "succeeded", "failed", "cancelled", "pending")


def the_books(scene: Scene, *webhooks: Webhook) -> None:
    """Check the accounting of every webhook."""
    scene.telling.chapter("The books")
    rows: list[tuple[object, ...]] = [("", "", *_COLUMNS)]
    closed = True
    for webhook in webhooks:
        lines = _closed_books(scene, webhook)
        closed = closed and all(map(_balances, lines.values()))
        rows += [
            (webhook.receiver.name, name, *(line[column] for column in _COLUMNS))
            for name, line in lines.items()
        ]
    scene.telling.table(rows)
    scene.telling.claim(closed, "accepted = succeeded + failed + cancelled + pending on every line")


def the_audit_chain(scene: Scene) -> None:
    """Recompute the audit chain from its export, and have the service verify it."""
    scene.telling.chapter("The audit chain")
    export = scene.api.download("/v1/audit", "application/x-ndjson")
    entries, head = recompute_chain(export)
    scene.telling.claim(
        entries > 0,
        f"exported, and recomputed here with hashlib: {entries} entries, the last one {head[:16]}…",
    )
    verified = scene.api.get("/v1/audit/verify", seq=entries, hash=head)
    scene.telling.claim(
        (verified["status"], verified["head"]["hash"]) == ("intact", head),
        "the service, asked to verify it up to there, agrees",
        verified,
    )
    scene.telling.claim(
        _is_noticed(export.replace(b'"key.revoke"', b'"key.remake"', 1)),
        "with a single word of it changed, the recomputation fails",
    )


def _closed_books(scene: Scene, webhook: Webhook) -> dict[str, Any]:
    """Return the lines of a webhook's books by name, once nothing is pending."""
    lines: dict[str, Any] = {}

    def nothing_pending() -> bool:
        books = scene.api.get(f"{webhook.path}/accounting")
        lines.update(events=books, replays=books["replays"], tests=books["tests"])
        return bool(books["balanced"]) and not any(line["pending"] for line in lines.values())

    scene.wait_for(f"the books of {webhook.receiver.name!r} close", nothing_pending)
    return lines


def _balances(line: dict[str, int]) -> bool:
    return line["accepted"] == sum(line[name] for name in _COLUMNS if name != "accepted")


def _is_noticed(export: bytes) -> bool:
    try:
        recompute_chain(export)
    except Unmet:
        return True
    return False
