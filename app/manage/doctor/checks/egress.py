"""The way out to receivers: a connection to each webhook's host, by the worker's own client."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from app.database import cursor
from app.lib.outbound.client import Outbound
from app.manage.doctor import findings
from app.manage.doctor.context import Context
from app.manage.doctor.findings import Finding, place

_MOST = 8
_SECONDS = 8.0
_SEE = "#deliveries-fail"
# The newest: enough of them to find some hosts.
_URLS = """
SELECT substring(url FROM '^https?://[^/?#]+') FROM webhooks
 WHERE status = 'enabled' AND deleted_at IS NULL ORDER BY id DESC LIMIT 200
"""


def check(context: Context) -> Iterator[Finding]:
    """Yield which hosts are reached; no request is sent to any."""
    with context.reading() as session:
        urls = [row[0] for row in cursor(session).execute(_URLS).fetchall()]
    hosts = list({place(url): url for url in urls}.items())[:_MOST]
    if not hosts:
        yield findings.not_checked("no webhook is enabled")
        return
    settings = context.settings
    outbound = Outbound(
        settings.webhook_allowed_networks,
        nat64_prefixes=settings.webhook_nat64_prefixes,
        authorities=settings.webhook_ca_file,
    )
    seconds = context.patient(_SECONDS)
    with ThreadPoolExecutor(_MOST) as pool:
        said = list(pool.map(lambda host: outbound.reach(host[1], deadline_seconds=seconds), hosts))
    failing = {where: why for (where, _), why in zip(hosts, said, strict=True) if why is not None}
    if len(failing) == len(hosts) > 1:
        yield findings.failed(
            f"none of {len(hosts)} receivers is reached: the way out may be closed",
            "let workers connect to public addresses (443), and resolve their names",
            see=_SEE,
        )
    for where, why in failing.items():
        yield findings.warning(f"{where} is not reached: {why}", "ask its owner", see=_SEE)
    if len(failing) < len(hosts):
        yield findings.ok(f"{len(hosts) - len(failing)} of {len(hosts)} receivers are reached")
