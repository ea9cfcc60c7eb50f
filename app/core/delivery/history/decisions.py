"""Why a webhook did or did not get an event: 17 bytes each, webhook id and code, in one array.

A row each would cost more than the event itself. The database's function `emit_events` packs them;
only test events are packed here.
"""

from uuid import UUID

MATCHED, FILTERED, DISABLED = 1, 2, 3
NAMES = {MATCHED: "matched", FILTERED: "filtered", DISABLED: "disabled"}

_SIZE = 17


def unpack(decisions: bytes) -> dict[UUID, str]:
    """Read a packed array: the decision's name for each webhook that existed then."""
    return {
        UUID(bytes=decisions[at : at + 16]): NAMES[decisions[at + 16]]
        for at in range(0, len(decisions), _SIZE)
    }


def pack(decisions: dict[UUID, int]) -> bytes:
    """Write a packed array from codes."""
    return b"".join(webhook.bytes + bytes([code]) for webhook, code in decisions.items())
