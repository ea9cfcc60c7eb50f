"""The public part of the log: published checkpoints, tiles and keys."""

from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.clock import rfc3339
from app.core import signing_keys
from app.core.log import publication, tile_rows
from app.core.log.publication import Published
from app.database import Tx
from app.errors import LogDamaged, NotFound
from app.ledger import entry_bundles, tile_verification, tiles
from app.ledger.notes import VerifierKey
from app.ledger.tile_verification import Unproven
from app.ledger.tiles import ENTRIES, Tile
from app.lib.crypto.signing import PublicKey
from app.models import LogGeneration


def tile(tx: Tx, last: Published, path: str) -> bytes:
    """Return a tile or entry bundle by its path (`tile/…`), proven by the published root.

    Raises `NotFound` beyond the published size, `LogDamaged` for what the root does not prove.
    """
    try:
        asked = tiles.parse_path(path)
    except ValueError as error:
        raise NotFound(str(error)) from None
    if asked.width > tiles.width(asked.level, asked.number, last.checkpoint.size):
        raise NotFound("The published log has no such tile, or a narrower one.")
    size = last.checkpoint.size
    stored = tile_rows.read(tx, last.generation, tile_verification.needed(asked.id, size))
    try:
        data = tile_verification.proven(asked.id, size, last.checkpoint.root, stored.__getitem__)
    except Unproven as refused:
        raise LogDamaged(
            f"The stored {refused.tile.path} is not of the tree that was published at {size}, "
            f"and nothing is served that it would prove. {publication.MENDED_BY}"
        ) from None
    return _cut(asked, data)


def jwks(session: Session) -> dict[str, Any]:
    """Return every public key with its dates as a JSON Web Key Set; retired ones stay."""
    logs = {row.key_id: row for row in session.scalars(select(LogGeneration))}
    keys = []
    for row in signing_keys.rows(session):
        raw = bytes(row.public_key)
        key: dict[str, Any] = {
            **PublicKey(raw).jwk,
            "purpose": row.purpose,
            "created_at": rfc3339(row.created_at),
            "retired_at": _when(row.retired_at),
            "revoked_at": _when(row.revoked_at),
            "revocation_reason": row.revocation_reason,
        }
        if row.key_id in logs:
            log = logs[row.key_id]
            key["vkey"] = str(VerifierKey.ed25519(log.origin, raw))
            key["prefix"] = f"/v1/log/{log.generation}"
        keys.append(key)
    return {"keys": keys}


def _when(moment: datetime | None) -> str | None:
    return None if moment is None else rfc3339(moment)


def _cut(asked: Tile, data: bytes) -> bytes:
    if asked.level == ENTRIES:
        return entry_bundles.cut(data, asked.width)
    return tiles.cut(data, asked.width)
