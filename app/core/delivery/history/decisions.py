"""Fan-out decisions of an event: 17 bytes per webhook (id and code) in one packed array.

A row per decision would cost more than the event itself. The database function `emit_events` packs
them; only the decisions of test events are packed here.
"""

from uuid import UUID

MATCHED, FILTERED, DISABLED = 1, 2, 3
NAMES = {MATCHED: "matched", FILTERED: "filtered", DISABLED: "disabled"}

_SIZE = 17


def unpack(decisions: bytes) -> dict[UUID, str]:
    """Return the decision's name for each webhook that existed then, from a packed array."""
    return {
        UUID(bytes=decisions[at : at + 16]): NAMES[decisions[at + 16]]
        for at in range(0, len(decisions), _SIZE)
    }


def matched(webhook_id: UUID) -> bytes:
    """Return the packed array of an event that one webhook alone gets."""
    return webhook_id.bytes + bytes([MATCHED])
