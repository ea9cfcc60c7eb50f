"""The list of all columns sealed under MASTER_KEYS.

A column that is missing here is not sealed anew and is lost when its key is dropped; a test
compares the list with the database and the calls of `seal`. Cursors, unsubscribe links and cached
results end with their key.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from app.core import idempotency, signing_keys
from app.core.audit import chain_identity
from app.core.log import generations
from app.core.packs import store
from app.core.records import bundles
from app.core.verification import sealed_notes, unknown_chains
from app.core.webhooks import webhook_secrets, webhook_targets
from app.core.words import search_keys


@dataclass(frozen=True)
class SealedColumn:
    """A column of sealed bytes, with its table's primary key.

    `identity` makes of a row what its bytes are sealed for, from the SQL expressions `sealed_for`
    over the table as `t`; by default from the key, which begins with the tenant if it has one.
    """

    table: str
    column: str
    key: tuple[str, ...]
    identity: Callable[..., str]
    sealed_for: tuple[str, ...] = ()
    has_tenant: bool = True

    def __str__(self) -> str:
        return f"{self.table}.{self.column}"

    @cached_property
    def keys(self) -> str:
        """The primary key's columns, as a list in SQL."""
        return ", ".join(f"t.{name}" for name in self.key)

    @cached_property
    def named_by(self) -> str:
        """The arguments of `identity`, as a list in SQL."""
        return ", ".join(self.sealed_for) or self.keys


_RECORD_OF_A_PART = """
(SELECT p.record_id FROM evidence_packs AS p WHERE p.tenant_id = t.tenant_id AND p.id = t.pack_id)
"""

SEALED_COLUMNS = (
    # Those of no tenant come first, in the order in which `log succeed` locks them.
    SealedColumn(
        "log_generations", "appointment", ("generation",), generations.identity, has_tenant=False
    ),
    SealedColumn(
        "signing_keys", "sealed_private_key", ("key_id",), signing_keys.identity, has_tenant=False
    ),
    SealedColumn(
        "acknowledged_chains", "seal", ("chain",), unknown_chains.identity, has_tenant=False
    ),
    SealedColumn("sealed_notes", "sealed", ("name",), sealed_notes.identity, has_tenant=False),
    SealedColumn("tenants", "chain_seal", ("id",), chain_identity.identity),
    SealedColumn("tenants", "sealed_search_key", ("id",), search_keys.identity),
    SealedColumn("webhooks", "sealed_secrets", ("tenant_id", "id"), webhook_secrets.identity),
    SealedColumn("webhooks", "sealed_target", ("tenant_id", "id"), webhook_targets.identity),
    SealedColumn(
        "idempotency_keys",
        "sealed_answer",
        ("tenant_id", "api_key_id", "scope"),
        idempotency.identity,
    ),
    SealedColumn("bundles", "bytes", ("tenant_id", "record_id"), bundles.identity),
    SealedColumn(
        "evidence_pack_parts",
        "bytes",
        ("tenant_id", "pack_id", "number"),
        store.identity,
        sealed_for=("t.tenant_id", _RECORD_OF_A_PART, "t.pack_id", "t.number"),
    ),
)
