"""Settings that are readable, and not what production needs."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from app.database import cursor
from app.manage.doctor import findings
from app.manage.doctor.context import Context, is_local
from app.manage.doctor.findings import Finding, NotChecked

# File systems that end with their container.
_PASSING = {"overlay", "tmpfs", "aufs", "ramfs"}
_WANT_DIGESTS = "SELECT count(*) FROM tenants WHERE notification_email IS NOT NULL"


def check(context: Context) -> Iterator[Finding]:
    """Yield what to set; on one's own machine nothing of it matters."""
    if context.is_on_this_machine:
        yield findings.ok(
            "all can be read; on this machine alone those for production are not looked at"
        )
        return
    found = [*_address(context), *_log_head(context), *_access(context), *_digests(context)]
    yield from found or [findings.ok("all can be read, and fit production")]


def _address(context: Context) -> Iterator[Finding]:
    settings = context.settings
    parts = urlsplit(settings.base_url)
    if is_local(parts.hostname):
        yield findings.warning(
            "BASE_URL is this machine's own: links in answers and mails lead nowhere",
            "set BASE_URL to the address that callers use",
            see="#settings",
        )
    elif parts.scheme != "https":
        yield findings.warning(
            "BASE_URL is not https: keys and the console's sessions travel in the clear",
            "set BASE_URL to an https address, and end TLS in the platform's router",
            see="#settings",
        )
    elif not settings.trusted_proxies:
        yield findings.warning(
            "TRUSTED_PROXIES is not set: every caller has the address of what ends TLS, and one"
            " rate limit",
            "set TRUSTED_PROXIES to the router's networks",
            see="setup.md#behind-a-proxy",
        )


def _log_head(context: Context) -> Iterator[Finding]:
    url = context.settings.log_head_url
    if url is None:
        yield findings.warning(
            "LOG_HEAD_URL is not set: a rollback of the database is found only by witnesses,"
            " timestamps or kept heads",
            "set LOG_HEAD_URL",
            see="setup.md#the-transparency-log",
        )
    elif urlsplit(url).scheme == "file":
        folder = Path(unquote(urlsplit(url).path)).parent
        passing = "DYNO" in context.environ or _file_system(folder) in _PASSING
        if passing:
            yield findings.failed(
                "LOG_HEAD_URL is a file that ends with its container: the log then signs nothing"
                " (log-head-lost)",
                "set LOG_HEAD_URL to s3://bucket/key, or mount a volume there",
                see="setup.md#the-transparency-log",
            )


def _access(context: Context) -> Iterator[Finding]:
    settings = context.settings
    if settings.metrics_token is None:
        yield findings.warning(
            "METRICS_TOKEN is not set: GET /metrics is 404, and no alert can fire",
            "set METRICS_TOKEN to a long random text",
            see="#an-alert-fires",
        )
    if not settings.redis_tls_verify:
        yield findings.warning(
            "REDIS_TLS_VERIFY does not verify Redis's certificate: who stands between reads its"
            " password",
            "set REDIS_CA_FILE to the server's authority, where there is one",
            see="setup.md#redis",
        )
    if settings.root_admin_key is not None:
        yield findings.warning(
            "ROOT_ADMIN_KEY is still set: each release makes a tenant of it if none knows the key",
            "unset ROOT_ADMIN_KEY once narrower keys are minted",
            see="setup.md#deploying",
        )
    if settings.webhook_allowed_networks:
        networks = ", ".join(map(str, settings.webhook_allowed_networks))
        yield findings.warning(
            f"WEBHOOK_ALLOWED_NETWORKS lets every tenant's webhooks reach {networks}",
            "unset WEBHOOK_ALLOWED_NETWORKS, or keep only receivers' networks in it",
            see="#settings",
        )


def _digests(context: Context) -> Iterator[Finding]:
    if context.settings.smtp_url is not None:
        return
    try:
        with context.reading() as session:
            (tenants,) = cursor(session).execute(_WANT_DIGESTS).fetchone() or (0,)
    except NotChecked as why:
        yield findings.not_checked(f"whether tenants want digests, without SMTP_URL: {why}")
        return
    if tenants:
        waits = context.settings.mail_folder is None
        fate = "wait" if waits else "become files that count as sent"
        yield findings.failed(
            f"SMTP_URL is not set, and {tenants} tenants want digests: these {fate}",
            "set SMTP_URL and MAIL_FROM",
            see="setup.md#the-digest",
        )


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
