"""The service's role in PostgreSQL: what binds it, and what it lacks."""

from collections.abc import Iterator

from sqlalchemy.orm import Session

from app import migrations
from app.core.health.parts import Part, failed, ok, warning
from app.database import cursor
from app.manage.doctor.context import Context

_MIGRATE = "python -m app.manage migrate"
_SEE = "setup.md#the-database"

_ROLE = "SELECT rolname, rolsuper, rolbypassrls FROM pg_roles WHERE rolname = current_user"
_TABLES = """
SELECT c.relname, pg_has_role(c.relowner, 'USAGE'), c.relrowsecurity AND c.relforcerowsecurity,
       EXISTS (SELECT FROM pg_policy AS p WHERE p.polrelid = c.oid)
       OR EXISTS (SELECT FROM pg_attribute AS a
                   WHERE a.attrelid = c.oid AND a.attname = 'tenant_id' AND NOT a.attisdropped)
  FROM pg_class AS c
 WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p')
   AND NOT c.relispartition
 ORDER BY c.relname
"""
# Keyed hashes, which say nothing without the tenant's key: these have no wall.
_WORDS = {"record_words", "bundle_words", "finding_words"}
_LACKS = """
SELECT wanted.name || ': ' || wanted.verb FROM unnest(%s::text[], %s::text[]) AS wanted (name, verb)
 WHERE NOT has_table_privilege('public.' || quote_ident(wanted.name), wanted.verb)
 UNION ALL
SELECT p.proname || '(): EXECUTE' FROM pg_proc AS p
 WHERE p.pronamespace = 'public'::regnamespace AND NOT has_function_privilege(p.oid, 'EXECUTE')
 ORDER BY 1
"""
_OPEN_DOORS = """
SELECT p.proname FROM pg_proc AS p
 WHERE p.pronamespace = 'public'::regnamespace AND p.prosecdef
   AND has_function_privilege('public', p.oid, 'EXECUTE')
 ORDER BY 1
"""
_REWRITES = """
SELECT verb FROM unnest(ARRAY['UPDATE', 'DELETE', 'TRUNCATE']) AS verb
 WHERE has_table_privilege('public.audit_entries', verb)
"""


def check(context: Context) -> Iterator[Part]:
    """Yield what the role may that it must not, then what it must and may not."""
    with context.reading() as session:
        tables = cursor(session).execute(_TABLES).fetchall()
        owns = any(row[1] for row in tables)
        yield from _role(session, owns=owns)
        yield from _walls({name for name, _, walled, wanted in tables if wanted and not walled})
        yield from _lacking(session, [row[0] for row in tables])
        yield from _doors(session)
        if not owns:
            yield from _audit(session)


def _role(session: Session, *, owns: bool) -> Iterator[Part]:
    name, is_superuser, bypasses = cursor(session).execute(_ROLE).fetchone() or ("", False, False)
    if is_superuser:
        yield failed(
            f"{name} is a superuser: row-level security does not bind it",
            f"ALTER ROLE {name} NOSUPERUSER, or another role in DATABASE_URL",
            see=_SEE,
        )
    elif bypasses:
        yield failed(
            f"{name} has BYPASSRLS: row-level security does not bind it",
            f"ALTER ROLE {name} NOBYPASSRLS",
            see=_SEE,
        )
    elif owns:
        yield warning(
            f"{name} owns the tables: the service could change the schema and rewrite the audit"
            " chain",
            "two roles: DATABASE_URL for the service, DATABASE_ADMIN_URL for `release`",
            see=_SEE,
        )
    else:
        yield ok(f"{name} owns no table, and row-level security binds it")


def _walls(missing: set[str]) -> Iterator[Part]:
    missing -= _WORDS
    if missing:
        named = ", ".join(sorted(missing))
        yield failed(
            f"row-level security is not enabled and forced on {named}",
            "as the owner: ALTER TABLE … ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY",
            see=_SEE,
        )


def _lacking(session: Session, tables: list[str]) -> Iterator[Part]:
    wanted = [(name, verb) for name in tables for verb in migrations.rights_on(name).split(", ")]
    columns = [list(column) for column in zip(*wanted, strict=True)]
    lacks = [row[0] for row in cursor(session).execute(_LACKS, columns).fetchall()]
    if lacks:
        more = "" if len(lacks) <= 5 else f", and {len(lacks) - 5} more"
        yield failed(f"the role lacks {', '.join(lacks[:5])}{more}", _MIGRATE, see="#upgrading")


def _doors(session: Session) -> Iterator[Part]:
    for (name,) in cursor(session).execute(_OPEN_DOORS).fetchall():
        yield failed(
            f"{name}() runs as its owner, and every role of the database may call it",
            f"as the owner: REVOKE EXECUTE ON FUNCTION {name} FROM PUBLIC",
            see="#retention",
        )


def _audit(session: Session) -> Iterator[Part]:
    verbs = [row[0] for row in cursor(session).execute(_REWRITES).fetchall()]
    if verbs:
        yield failed(f"the role may {', '.join(verbs)} audit entries", _MIGRATE, see="#upgrading")
