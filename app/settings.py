"""Settings, read once from the environment into one frozen object.

This is the only module that reads `os.environ`. A wrong value ends the program with one line that
names the variable and the fix. Without `DATABASE_URL`, the files that `make up` keeps under
`DATA_DIR` are read.
"""

import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from functools import partial
from ipaddress import IPv6Network
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from cryptography.x509 import Certificate

from app import setting_values as values
from app.evidence import signing_certificates, timestamps
from app.evidence.signing_certificates import SigningChain
from app.ledger.policy import NONE, Policy
from app.lib import forwarded, stores
from app.lib.crypto.sealing import MasterKeys
from app.lib.mail.mailer import MailServer
from app.lib.outbound.addresses import Network
from app.lib.rates import Rate

VERSION = "0.1.0"

Process = Literal["web", "worker"]

# Seconds before each attempt, the first included: about three days in all.
RETRY_SCHEDULE = (0.0, 5.0, 300.0, 1800.0, 7200.0, 18000.0, 36000.0, 50400.0, 72000.0, 86400.0)


# Each of these that is set needs the other.
_NEEDS = (
    ("SMTP_URL", "MAIL_FROM"),
    ("OIDC_ISSUER", "OIDC_CLIENT_ID"),
    ("OIDC_ISSUER", "OIDC_CLIENT_SECRET"),
    ("OIDC_CLIENT_ID", "OIDC_ISSUER"),
    ("OIDC_CLIENT_SECRET", "OIDC_ISSUER"),
    ("TSA_URL", "TSA_CA_FILE"),
    ("TSA_CA_FILE", "TSA_URL"),
    ("TSA_AUTHORIZATION", "TSA_URL"),
    ("LOG_REQUIRE_QUORUM", "WITNESS_POLICY"),
    ("AUDIT_ARCHIVE_DAYS", "BLOB_URL"),
)


class SettingError(ValueError):
    """A setting is missing or cannot be read; the text names the variable and the fix."""


def _setting(
    name: str, convert: Callable[[str], Any], *default: object, secret: bool = False
) -> Any:
    """Make a field that is read from the variable `name`; without a default it is required."""
    return field(repr=not secret, metadata={"name": name, "convert": convert, "default": default})


@dataclass(frozen=True)
class WebLimits:
    """Limits of one web process: concurrency, timeouts of slow callers; sizes in bytes."""

    threads: int = _setting("WEB_THREADS", values.count, 16)
    body_seconds: float = _setting("BODY_SECONDS", values.positive, 20.0)
    body_rate: float = _setting("BODY_RATE", values.rate, 16384.0)
    body_memory: int = _setting("BODY_MEMORY_MIB", values.mebibytes, 32 * values.MIB)
    answer_seconds: float = _setting("ANSWER_SECONDS", values.positive, 30.0)
    answer_rate: float = _setting("ANSWER_RATE", values.rate, 16384.0)
    rendering_memory: int = _setting("RENDERING_MEMORY_MIB", values.mebibytes, 16 * values.MIB)
    answer_memory: int = _setting("ANSWER_MEMORY_MIB", values.mebibytes, 32 * values.MIB)
    large_at_once: int = _setting("LARGE_AT_ONCE", values.count, 2)
    large_waiting: int = _setting("LARGE_WAITING", values.count, 6)


@dataclass(frozen=True)
class OpenId:
    """The OpenID provider by which people sign in to the console; without an `issuer` none do."""

    issuer: str | None = _setting("OIDC_ISSUER", values.issuer, None)
    client_id: str = _setting("OIDC_CLIENT_ID", str, "")
    client_secret: str = _setting("OIDC_CLIENT_SECRET", str, "", secret=True)
    scopes: str = _setting("OIDC_SCOPES", values.scopes, "openid email profile")
    groups_claim: str = _setting("OIDC_GROUPS_CLAIM", str, "groups")
    ca_file: str | None = _setting("OIDC_CA_FILE", values.authorities, None)
    session_seconds: int = _setting(
        "OIDC_SESSION_SECONDS", values.whole(60, 86_400, "number of seconds"), 3600
    )


@dataclass(frozen=True)
class Settings:
    """All settings, read from the environment; docs/operations.md describes each variable."""

    database_url: str = _setting("DATABASE_URL", stores.postgres, secret=True)
    database_admin_url: str = _setting("DATABASE_ADMIN_URL", stores.postgres, None, secret=True)
    database_replica_url: str | None = _setting(
        "DATABASE_REPLICA_URL", partial(stores.postgres, writes=False), None, secret=True
    )
    redis_url: str | None = _setting("REDIS_URL", stores.redis, None, secret=True)
    redis_ca_file: str | None = _setting("REDIS_CA_FILE", values.authorities, None)
    redis_tls_verify: bool = _setting("REDIS_TLS_VERIFY", values.redis_tls_verify, True)
    master_keys: MasterKeys = _setting("MASTER_KEYS", MasterKeys.parse, secret=True)
    base_url: str = _setting("BASE_URL", values.base_url)
    log_origin: str = _setting("LOG_ORIGIN", values.origin, None)
    log_head_url: str | None = _setting(
        "LOG_HEAD_URL", partial(values.objects_url, names_object=True), None
    )
    blob_url: str | None = _setting("BLOB_URL", values.objects_url, None)
    root_admin_key: str | None = _setting("ROOT_ADMIN_KEY", values.api_key, None, secret=True)
    webhook_allowed_networks: tuple[Network, ...] = _setting(
        "WEBHOOK_ALLOWED_NETWORKS", values.networks, ()
    )
    webhook_nat64_prefixes: tuple[IPv6Network, ...] = _setting(
        "WEBHOOK_NAT64_PREFIXES", values.nat64_prefixes, ()
    )
    webhook_ca_file: str | None = _setting("WEBHOOK_CA_FILE", values.authorities, None)
    tsa_url: str | None = _setting("TSA_URL", values.authority_url, None)
    tsa_authorization: str | None = _setting(
        "TSA_AUTHORIZATION", values.authorization, None, secret=True
    )
    tsa_ca_file: tuple[Certificate, ...] = _setting(
        "TSA_CA_FILE", values.read_by(timestamps.read_certificates), ()
    )
    signing_certificates: tuple[SigningChain, ...] = _setting(
        "SIGNING_CERTIFICATES", values.read_by(signing_certificates.read_chains), ()
    )
    witness_policy: Policy | None = _setting("WITNESS_POLICY", values.policy, None)
    log_require_quorum: bool = _setting("LOG_REQUIRE_QUORUM", values.switch, False)
    log_quorum_grace: timedelta = _setting(
        "LOG_QUORUM_GRACE_SECONDS", values.seconds, timedelta(seconds=120)
    )
    retry_schedule: tuple[float, ...] = _setting("RETRY_SCHEDULE", values.schedule, RETRY_SCHEDULE)
    first_pause: timedelta = _setting(
        "PAUSE_SECONDS", values.positive_seconds, timedelta(seconds=30)
    )
    min_retention_days: int = _setting("MIN_RETENTION_DAYS", values.days, 1)
    audit_reads: bool = _setting("AUDIT_READS", values.switch, False)
    history_days: int = _setting("HISTORY_DAYS", values.days, 90)
    audit_archive_days: int | None = _setting("AUDIT_ARCHIVE_DAYS", values.many_days, None)
    findings_days: int | None = _setting("FINDINGS_DAYS", values.many_days, None)
    max_webhooks: int = _setting("MAX_WEBHOOKS", values.whole(1, 10_000, "number of webhooks"), 100)
    export_days: int = _setting("EXPORT_DAYS", values.days, 30)
    session_idle: timedelta = _setting(
        "SESSION_IDLE_SECONDS", values.positive_seconds, timedelta(days=1)
    )
    disable_after: timedelta = _setting(
        "DISABLE_AFTER_DAYS", values.positive_days, timedelta(days=5)
    )
    digest_settle: timedelta = _setting(
        "DIGEST_SETTLE_SECONDS", values.seconds, timedelta(seconds=900)
    )
    smtp_url: MailServer | None = _setting("SMTP_URL", MailServer.parse, None)
    mail_from: str = _setting("MAIL_FROM", values.mailbox, None)
    mail_folder: Path | None = _setting("DATA_DIR", values.mail_folder, None)
    rate_limit: Rate = _setting("RATE_LIMIT", Rate.parse, Rate(60_000, 60))
    tenant_rate_limit: Rate = _setting("TENANT_RATE_LIMIT", Rate.parse, Rate(120_000, 60))
    address_rate_limit: Rate = _setting("ADDRESS_RATE_LIMIT", Rate.parse, Rate(6_000, 60))
    tenant_stored_mib: int = _setting("TENANT_STORED_MIB", values.limit, 102_400)
    tenant_records: int = _setting("TENANT_RECORDS", values.limit, 50_000_000)
    tenant_staged_mib: int = _setting("TENANT_STAGED_MIB", values.limit, 256)
    trusted_proxies: tuple[Network, ...] = _setting("TRUSTED_PROXIES", values.proxies, ())
    proxy_header: str = _setting(
        "PROXY_HEADER",
        values.one_of(forwarded.X_FORWARDED_FOR, forwarded.FORWARDED),
        forwarded.X_FORWARDED_FOR,
    )
    metrics_token: str | None = _setting("METRICS_TOKEN", str, None, secret=True)
    log_level: str = _setting(
        "LOG_LEVEL", values.one_of("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"), "INFO"
    )
    log_format: str = _setting("LOG_FORMAT", values.one_of("json", "console"), "json")
    database_connections: int = _setting("DATABASE_CONNECTIONS", values.whole(2, 10_000), 40)
    web_concurrency: int = _setting("WEB_CONCURRENCY", values.count, 2)
    worker_processes: int = _setting("WORKER_PROCESSES", values.count, 2)
    database_prepare_threshold: int | None = _setting(
        "DATABASE_PREPARE_THRESHOLD", values.count, None
    )
    web: WebLimits = field(kw_only=True)
    openid: OpenId = field(kw_only=True)

    def connections_of(self, process: Process) -> int:
        """Return how many database connections one process may have, at least one.

        Half of DATABASE_CONNECTIONS is for all web processes, half for all worker processes.
        """
        processes = self.web_concurrency if process == "web" else self.worker_processes
        return max(1, self.database_connections // 2 // processes)

    @property
    def most_connections(self) -> int:
        """The most database connections of all web and worker processes."""
        web = self.web_concurrency * self.connections_of("web")
        return web + self.worker_processes * self.connections_of("worker")

    @property
    def takes_mail(self) -> bool:
        """Whether digests go somewhere: to a server, or as files into the data folder."""
        return self.smtp_url is not None or self.mail_folder is not None

    def signing_chain(self, key_id: str, *moments: datetime) -> SigningChain | None:
        """Return the certificates of a key, if they were valid at each of these moments."""
        of_key = (each for each in self.signing_certificates if each.key.id == key_id)
        return next((each for each in of_key if each.covers(*moments)), None)

    @property
    def first_wait(self) -> timedelta:
        """How long a delivery waits for its first attempt."""
        return timedelta(seconds=self.retry_schedule[0])

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> "Settings":
        """Read the settings from a mapping such as `os.environ`.

        Raises `SettingError` at the first variable that is missing or wrong.
        """
        found = _read_all(cls, environ)
        found["database_admin_url"] = found["database_admin_url"] or found["database_url"]
        try:
            found["redis_url"] = values.redis_with_tls(
                found["redis_url"], found["redis_ca_file"], verified=found["redis_tls_verify"]
            )
        except ValueError as error:
            raise SettingError(str(error)) from error
        found["log_origin"] = found["log_origin"] or _origin_of(found["base_url"])
        # Without a mail server, of mails that become files.
        found["mail_from"] = found["mail_from"] or "record-service@localhost.invalid"
        settings = cls(
            **found,
            web=WebLimits(**_read_all(WebLimits, environ)),
            openid=OpenId(**_read_all(OpenId, environ)),
        )
        for name, other in _NEEDS:
            if _text(environ, name) not in ("", "0") and not _text(environ, other):
                raise SettingError(f"{other} is not set, and {name} is, which needs it.")
        _check_quorum(settings)
        if (settings.findings_days or settings.history_days) < settings.history_days:
            raise SettingError(
                f"FINDINGS_DAYS is less than HISTORY_DAYS ({settings.history_days}), whose events"
                " need their findings: raise it, or lower HISTORY_DAYS."
            )
        return settings


def environment() -> dict[str, str]:
    """Return a copy of the process's environment, for programs that start others."""
    return dict(os.environ)


def load() -> Settings:
    """Read the settings of this process.

    Raises `SettingError` when a variable is missing or wrong.
    """
    environ = environment()
    if not environ.get("DATABASE_URL"):
        environ = {**kept_settings(Path(environ.get("DATA_DIR") or ".data")), **environ}
    return Settings.from_environ(environ)


def kept_settings(data_dir: Path) -> dict[str, str]:
    """Read the files that `make up` keeps in its data folder; empty without them."""
    return {**variables(data_dir / "secrets"), **variables(data_dir / "env")}


def variables(file: Path) -> dict[str, str]:
    """Read a file of `NAME=value` words as a shell does; empty without it. Raises `ValueError`."""
    text = file.read_text("utf-8") if file.is_file() else ""
    pairs = (word.partition("=") for word in shlex.split(text, comments=True))
    return {name: value for name, _, value in pairs}


def _read_all(group: type, environ: Mapping[str, str]) -> dict[str, Any]:
    """Read the variables of a dataclass's fields; an empty variable counts as not set."""
    found = {}
    for each in fields(group):
        if not each.metadata:
            continue
        name = each.metadata["name"]
        if text := _text(environ, name):
            try:
                found[each.name] = each.metadata["convert"](text)
            except (ValueError, OSError) as error:
                raise SettingError(f"{name} is wrong: {error}") from error
        elif each.metadata["default"]:
            (found[each.name],) = each.metadata["default"]
        else:
            raise SettingError(f"{name} is not set: see docs/operations.md (or run `make up`).")
    return found


def _text(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name, "").strip()


def _origin_of(base_url: str) -> str:
    """Return the default origin of a log that begins: its own prefix, without the scheme.

    As C2SP tlog-tiles recommends. A successor is `…/v1/log/2`, which is its prefix as well.
    """
    parts = urlsplit(base_url)
    host = parts.netloc.rpartition("@")[2]
    try:
        return values.origin(f"{host}{parts.path}/v1/log/1")
    except ValueError:
        return values.origin(f"{host}/v1/log/1")


def _check_quorum(settings: Settings) -> None:
    """Refuse LOG_REQUIRE_QUORUM where there is no quorum, or none that can be made."""
    policy = settings.witness_policy
    if not settings.log_require_quorum or policy is None:
        return
    if policy.quorum == NONE:
        raise SettingError(
            "WITNESS_POLICY says `quorum none`, and LOG_REQUIRE_QUORUM=1 needs a quorum."
        )
    if not policy.is_met_by(
        each.key for each in policy.witnesses if each.url is not None and each.key.checkable
    ):
        raise SettingError(
            "WITNESS_POLICY has a quorum that cannot be made here, and LOG_REQUIRE_QUORUM=1 needs"
            " one: give enough of its witnesses a URL and a key of algorithm 04 or 06."
        )
