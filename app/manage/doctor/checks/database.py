"""PostgreSQL: whether it answers and takes writes, its version, and its schema."""

from collections.abc import Iterator

from sqlalchemy.engine import make_url

from app.core.health import write_proof
from app.database import cursor
from app.manage.doctor import findings
from app.manage.doctor.context import Context
from app.manage.doctor.findings import Finding

_OLDEST = 150_000
_VERSION = "SELECT current_setting('server_version'), current_setting('server_version_num')::int"

# PostgreSQL's reasons for a refusal (its errcodes in words), and their remedies.
_MENDED = (
    ("authentication failed", "set DATABASE_URL as the database's provider shows it"),
    ("no pg_hba.conf entry", "allow this host in pg_hba.conf, or add ?sslmode=require"),
    ("does not exist", "set DATABASE_URL to a role and a database that exist"),
    ("invalid connection option", "correct what stands behind the ? in DATABASE_URL"),
    ("too many", "lower DATABASE_CONNECTIONS, or raise the role's CONNECTION LIMIT"),
    ("remaining connection slots", "lower DATABASE_CONNECTIONS, or raise max_connections"),
    ("is not known", "correct the host in DATABASE_URL"),
    ("resolve", "correct the host in DATABASE_URL"),
)
_WRITABLE = (
    ("disk is full", "free or add disk space on PostgreSQL's host"),
    ("a standby", "set DATABASE_URL to the primary, or promote this one"),
    (
        "default_transaction_read_only",
        "reset default_transaction_read_only on server, role and URL",
    ),
)


def check(context: Context) -> Iterator[Finding]:
    """Yield what is wrong with the server, or its version."""
    url = make_url(context.settings.database_url)
    where = f"{url.host or 'its socket'}:{url.port or 5432}/{url.database or ''}"
    problem = context.database_problem()
    if problem is not None:
        mended = (mend for text, mend in _MENDED if text in problem)
        yield findings.failed(
            f"PostgreSQL at {where} does not answer: {problem}",
            next(mended, "start PostgreSQL, and let this host reach it"),
            see="#readyz-says-degraded",
        )
        return
    with context.server() as session:
        version, number = cursor(session).execute(_VERSION).fetchone() or ("", 0)
    if number < _OLDEST:
        yield findings.failed(
            f"PostgreSQL {version} is older than 15",
            "upgrade PostgreSQL",
            see="setup.md#the-database",
        )
    else:
        yield findings.ok(f"PostgreSQL {version} at {where}")
    problem = context.schema_problem()
    if problem is not None:
        yield findings.failed(problem, "python -m app.manage migrate", see="#upgrading")
        return
    yield findings.ok("the schema is this release's, or a later one's")
    refused = write_proof.refusal(context.database, context.settings.master_keys)
    if refused is None:
        yield findings.ok("it takes writes")
    else:
        yield findings.failed(
            f"PostgreSQL at {where} answers reads; a write is {refused}",
            next((mend for text, mend in _WRITABLE if text in refused), "see PostgreSQL's log"),
            see="#the-database-takes-no-writes",
        )
