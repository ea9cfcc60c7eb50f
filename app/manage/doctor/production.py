"""What does not fit production: settings, keys, authorities that end, the role in PostgreSQL."""

import platform
import ssl
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from urllib.parse import unquote, urlsplit

from cryptography import x509
from cryptography.x509 import Certificate
from sqlalchemy.orm import Session

from app import ids, migrations
from app.core import signing_keys
from app.core.health.parts import Part, failed, ok, warning
from app.core.signing_keys import Purpose
from app.database import cursor
from app.lib.crypto.sealing import CannotOpen
from app.manage.doctor.context import Context, is_local
from app.settings import VERSION

# File systems that end with their container.
_PASSING = {"overlay", "tmpfs", "aufs", "ramfs"}
_CLIENTS = ("psycopg", "redis", "dramatiq", "cryptography")


def settings(context: Context) -> Iterator[Part]:
    """Yield what to set; on one's own machine nothing of it matters."""
    if context.is_on_this_machine:
        yield ok("all can be read; on this machine alone those for production are not looked at")
        return
    yield from _log_head(context)
    yield from _unfit(context)


def _log_head(context: Context) -> Iterator[Part]:
    url = urlsplit(context.settings.log_head_url or "")
    if url.scheme != "file":
        return
    folder = Path(unquote(url.path)).parent
    if "DYNO" in context.environ or _file_system(folder) in _PASSING:
        yield failed(
            "LOG_HEAD_URL is a file that ends with its container: the log then signs nothing"
            " (log-head-lost)",
            "set LOG_HEAD_URL to s3://bucket/key, or mount a volume there",
            see="setup.md#the-transparency-log",
        )


def _unfit(context: Context) -> Iterator[Part]:
    """Yield a warning for each setting that does not fit production."""
    settings = context.settings
    address = urlsplit(settings.base_url)
    is_own, is_https = is_local(address.hostname), address.scheme == "https"
    networks = ", ".join(map(str, settings.webhook_allowed_networks))
    for applies, reason, mend, see in (
        (
            is_own,
            "BASE_URL is this machine's own: links in answers and mails lead nowhere",
            "set BASE_URL to the address that callers use",
            "#settings",
        ),
        (
            not is_own and not is_https,
            "BASE_URL is not https: keys and the console's sessions travel in the clear",
            "set BASE_URL to an https address, and end TLS in the platform's router",
            "#settings",
        ),
        (
            not is_own and is_https and not settings.trusted_proxies,
            "TRUSTED_PROXIES is not set: all callers share the address, and rate limit, of a proxy",
            "set TRUSTED_PROXIES to the router's networks",
            "setup.md#behind-a-proxy",
        ),
        (
            settings.log_head_url is None,
            "LOG_HEAD_URL is not set: only witnesses, timestamps or kept heads show a rollback",
            "set LOG_HEAD_URL",
            "setup.md#the-transparency-log",
        ),
        (
            settings.metrics_token is None,
            "METRICS_TOKEN is not set: GET /metrics is 404, and no alert can fire",
            "set METRICS_TOKEN to a long random text",
            "#an-alert-fires",
        ),
        (
            not settings.redis_tls_verify,
            "REDIS_TLS_VERIFY does not verify Redis's certificate: others can read its password",
            "set REDIS_CA_FILE to the server's authority, where there is one",
            "setup.md#redis",
        ),
        (
            settings.root_admin_key is not None,
            "ROOT_ADMIN_KEY is still set: each release makes a tenant of it if none knows the key",
            "unset ROOT_ADMIN_KEY once narrower keys are minted",
            "setup.md#deploying",
        ),
        (
            bool(networks),
            f"WEBHOOK_ALLOWED_NETWORKS lets every tenant's webhooks reach {networks}",
            "unset WEBHOOK_ALLOWED_NETWORKS, or keep only receivers' networks in it",
            "#settings",
        ),
    ):
        if applies:
            yield warning(reason, mend, see=see)


def _file_system(folder: Path) -> str:
    """Return the type of the file system that a folder is on, "" where the kernel does not say."""
    table = Path("/proc/self/mountinfo")
    if not table.is_file():
        return ""
    here = folder.resolve()
    found: dict[Path, str] = {}
    for line in table.read_text("utf-8", "replace").splitlines():
        # proc(5): …, mount point is the fifth field; the type is the first behind " - ".
        mount, _, rest = line.partition(" - ")
        # The last of several on one point is the one that is seen.
        found[Path(mount.split()[4].replace("\\040", " "))] = rest.split()[0]
    on = next((each for each in (here, *here.parents) if each in found), None)
    return "" if on is None else found[on]


def versions(_: Context) -> Iterator[Part]:
    """Yield the versions of this process; those of the stores are in their own checks."""
    clients = ", ".join(f"{name} {version(name)}" for name in _CLIENTS)
    yield ok(
        f"record-service {VERSION} on Python {platform.python_version()}, {clients},"
        f" {ssl.OPENSSL_VERSION}"
    )


_FEWER_DAYS = """
SELECT id, bundle_retention_days FROM tenants WHERE bundle_retention_days < %s ORDER BY id LIMIT 11
"""


def retention(context: Context) -> Iterator[Part]:
    """Yield tenants whose retention is below MIN_RETENTION_DAYS, as it was before the floor."""
    least = context.settings.min_retention_days
    with context.reading() as session:
        found = cursor(session).execute(_FEWER_DAYS, (least,)).fetchall()
    if not found:
        return
    told = ", ".join(f"{ids.text('ten', tenant)} ({days})" for tenant, days in found[:10])
    more = " and others" if len(found) > 10 else ""
    yield warning(
        f"bundles are kept for fewer than {least} days (MIN_RETENTION_DAYS) by {told}{more}",
        "have their administrators raise bundle_retention_days, or lower the setting",
        see="#retention",
    )


_STATUS = "python -m app.manage master-key status"
_MASTER_KEY = "#a-missing-master-key"
_SOON = timedelta(days=30)


def keys(context: Context) -> Iterator[Part]:
    """Yield keys that do not open, and authorities that end soon.

    The part `master_keys` names the keys that MASTER_KEYS lacks; `master-key status` reads each
    seal.
    """
    yield from _authorities(context)
    with context.reading() as session:
        yield from _signing(context, session)
        chains = context.settings.signing_certificates
        for each in signing_keys.certificate_problems(session, chains):
            yield failed(each, "set the certificates that the authority gave for the current key")


def _signing(context: Context, session: Session) -> Iterator[Part]:
    current = [each for each in signing_keys.rows(session) if each.retired_at is None]
    for purpose in Purpose:
        key = next((each for each in current if each.purpose == purpose), None)
        if key is None:
            yield ok(f"no {purpose} key yet: what signs first makes it")
            continue
        try:
            signing_keys.opened(session, context.settings.master_keys, key.key_id)
        except CannotOpen:
            yield failed(
                f"the {purpose} key {key.key_id} does not open under MASTER_KEYS, so nothing is"
                " signed",
                _STATUS,
                see=_MASTER_KEY,
            )
        else:
            yield ok(f"the {purpose} key {key.key_id} opens")


def _authorities(context: Context) -> Iterator[Part]:
    settings = context.settings
    now = datetime.fromtimestamp(context.clock(), UTC)
    if settings.tsa_ca_file:
        # An old root stays beside the new one, for old timestamps.
        roots = [each for each in settings.tsa_ca_file if each.subject == each.issuer]
        newest = max(roots, key=lambda each: each.not_valid_after_utc)
        yield from _expiring("TSA_CA_FILE", [newest], now)
    for chain in settings.signing_certificates:
        yield from _expiring("SIGNING_CERTIFICATES", chain.certificates, now)
    if settings.webhook_ca_file is not None:
        found = x509.load_pem_x509_certificates(settings.webhook_ca_file.encode())
        yield from _expiring("WEBHOOK_CA_FILE", found, now)


def _expiring(setting: str, found: Sequence[Certificate], now: datetime) -> Iterator[Part]:
    """Say which certificates end soon; that all have ended is a failure."""
    mend = f"put the authority's new certificate into {setting}"
    ended = [each for each in found if each.not_valid_after_utc <= now]
    soon = [each for each in found if now < each.not_valid_after_utc <= now + _SOON]
    for each in (*ended, *soon):
        name, end = each.subject.rfc4514_string(), each.not_valid_after_utc
        text = f"{setting}: {name} is valid until {end:%Y-%m-%d}"
        if len(ended) == len(found):
            yield failed(text, mend, see="#settings")
        else:
            yield warning(text, mend, see="#settings")
    if not ended and not soon:
        first = min(each.not_valid_after_utc for each in found)
        yield ok(f"{setting}: valid until {first:%Y-%m-%d}")


_MIGRATE = "python -m app.manage migrate"
_THE_DATABASE = "setup.md#the-database"

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


def roles(context: Context) -> Iterator[Part]:
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
            see=_THE_DATABASE,
        )
    elif bypasses:
        yield failed(
            f"{name} has BYPASSRLS: row-level security does not bind it",
            f"ALTER ROLE {name} NOBYPASSRLS",
            see=_THE_DATABASE,
        )
    elif owns:
        yield warning(
            f"{name} owns the tables: the service could change the schema and rewrite the audit"
            " chain",
            "two roles: DATABASE_URL for the service, DATABASE_ADMIN_URL for `release`",
            see=_THE_DATABASE,
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
            see=_THE_DATABASE,
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
