"""Settings that are readable, and not what production needs; and the versions of what runs."""

import platform
import ssl
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from urllib.parse import unquote, urlsplit

from app.core.health.parts import Part, failed, ok, warning
from app.manage.doctor.context import Context, is_local
from app.settings import VERSION

# File systems that end with their container.
_PASSING = {"overlay", "tmpfs", "aufs", "ramfs"}
_CLIENTS = ("psycopg", "redis", "dramatiq", "cryptography")


def check(context: Context) -> Iterator[Part]:
    """Yield what to set; on one's own machine nothing of it matters."""
    if context.is_on_this_machine:
        yield ok("all can be read; on this machine alone those for production are not looked at")
        return
    found = [*_log_head(context), *_unfit(context)]
    yield from found or [ok("all can be read, and fit production")]


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
