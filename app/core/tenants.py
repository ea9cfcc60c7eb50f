"""Tenants: made by an operator, each with an audit chain and a root admin key from the start."""

from uuid import UUID

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from app import ids
from app.core.audit import chain
from app.core.callers import OPERATOR, Role
from app.database import Database
from app.lib.crypto import api_keys
from app.lib.crypto.sealing import MasterKeys
from app.models import ApiKey, Tenant

ROOT_KEY_NAME = "root"
# Advisory lock number; unique in this database.
_SEED_LOCK = 7_264_301_559


def create(
    database: Database, master_keys: MasterKeys, name: str, *, root_key: str | None = None
) -> tuple[UUID, str]:
    """Create a tenant with its chain and root admin key; return the tenant's id and the key's text.

    `root_key` is the text of the key to install; by default a new one is generated. The text is not
    stored.
    """
    tenant_id, key_id = ids.new(), ids.new()
    key_text = root_key or api_keys.new()
    salt, seal = chain.new_salt(master_keys, tenant_id)
    with database.transaction(tenant_id) as session:
        session.add(Tenant(id=tenant_id, name=name, chain_salt=salt, chain_seal=seal))
        session.flush()
        session.add(
            ApiKey(
                tenant_id=tenant_id,
                id=key_id,
                name=ROOT_KEY_NAME,
                role=Role.ADMIN,
                digest=api_keys.digest(key_text),
            )
        )
        session.flush()
        chain.begin(session, tenant_id, OPERATOR, {"name": name})
        chain.append(
            session,
            tenant_id,
            OPERATOR,
            "key.mint",
            target=("key", ids.text("key", key_id)),
            details={"name": ROOT_KEY_NAME, "role": "admin"},
        )
    return tenant_id, key_text


def seed(
    database: Database, master_keys: MasterKeys, root_key: str, *, name: str = "default"
) -> bool:
    """Create the first tenant with the operator's key, unless that key exists already.

    Returns whether a tenant was created. A revoked root key stays revoked: it exists.
    """
    with database.across_tenants() as session:
        # Two releases at once: the second waits here, and then knows the first one's key.
        session.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _SEED_LOCK})
        digest = api_keys.digest(root_key)
        if session.scalar(select(ApiKey.id).where(ApiKey.digest == digest)) is not None:
            return False
        create(database, master_keys, name, root_key=root_key)
    return True


def name(session: Session, tenant_id: UUID) -> str:
    """Return the name of a tenant, which has to exist."""
    return session.scalars(select(Tenant.name).where(Tenant.id == tenant_id)).one()


def rows(session: Session) -> list[Tenant]:
    """Return every tenant, oldest first."""
    return list(session.scalars(select(Tenant).order_by(Tenant.id)))
