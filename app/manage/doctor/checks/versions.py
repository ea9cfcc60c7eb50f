"""Which release this is, and on what it stands."""

import platform
import ssl
from collections.abc import Iterator
from importlib.metadata import version

from app.manage.doctor import findings
from app.manage.doctor.context import Context
from app.manage.doctor.findings import Finding
from app.settings import VERSION

_CLIENTS = ("psycopg", "redis", "dramatiq", "cryptography")


def check(_: Context) -> Iterator[Finding]:
    """Yield the versions of this process; those of the stores are in their own checks."""
    clients = ", ".join(f"{name} {version(name)}" for name in _CLIENTS)
    yield findings.ok(
        f"record-service {VERSION} on Python {platform.python_version()}, {clients},"
        f" {ssl.OPENSSL_VERSION}"
    )
