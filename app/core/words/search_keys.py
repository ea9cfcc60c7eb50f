"""Each tenant's search key: created when it is first needed, sealed, and never changed."""

import secrets
from functools import lru_cache
from uuid import UUID

from psycopg.rows import scalar_row

from app.core.words.tokenizer import Lexemes
from app.database import Tx, cursor
from app.lib.crypto.sealing import MasterKeys

_FIND = "SELECT sealed_search_key FROM tenants WHERE id = %s"
_MAKE = "UPDATE tenants SET sealed_search_key = %s WHERE id = %s AND sealed_search_key IS NULL"


def lexemes(tx: Tx, master_keys: MasterKeys, tenant_id: UUID) -> Lexemes:
    """Return the tenant's keyed `Lexemes`; the first call creates the key."""
    cur = cursor(tx, scalar_row)
    sealed = cur.execute(_FIND, (tenant_id,)).fetchone()
    if sealed is None:
        # Of two concurrent calls the second waits for the row, and then finds the first one's key.
        fresh = master_keys.seal(secrets.token_bytes(32), identity(tenant_id))
        cur.execute(_MAKE, (fresh, tenant_id))
        sealed = cur.execute(_FIND, (tenant_id,)).fetchone()
    if sealed is None:
        raise LookupError(f"tenant {tenant_id} has no row")
    return _opened(master_keys, tenant_id, sealed)


@lru_cache(maxsize=4096)
def _opened(master_keys: MasterKeys, tenant_id: UUID, sealed: bytes) -> Lexemes:
    return Lexemes(master_keys.open(sealed, identity(tenant_id)))


def identity(tenant_id: UUID) -> str:
    """Return the identity (associated data) under which a search key is sealed."""
    return f"tenants/{tenant_id}/search_key"
