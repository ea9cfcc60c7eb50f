"""Settings, read once from the environment into one frozen object.

This is the only module that reads `os.environ`. A wrong value ends the program with one line that
names the variable and the fix. Without `DATABASE_URL`, the files that `make up` keeps under
`DATA_DIR` are read.
"""

import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TypedDict, TypeVar
from urllib.parse import urlsplit

from cryptography.x509 import Certificate

from app import setting_values as values
from app.ledger.policy import NONE, Policy
from app.lib import forwarded
from app.lib.crypto.sealing import MasterKeys
from app.lib.mail.smtp_url import MailServer
from app.lib.outbound.addresses import Network
from app.lib.rates import Rate

VERSION = "0.1.0"

# Seconds before each attempt, the first included: about three days in all.
RETRY_SCHEDULE = (0.0, 5.0, 300.0, 1800.0, 7200.0, 18000.0, 36000.0, 50400.0, 72000.0, 86400.0)

_Value = TypeVar("_Value")


class SettingError(ValueError):
    """A setting is missing or cannot be read; the text names the variable and the fix."""


@dataclass(frozen=True)
class WebLimits:
    """What one web process does at a time, and how slow its callers may be; sizes in bytes."""

    threads: int
    body_seconds: float
    body_rate: float
    body_memory: int
    answer_seconds: float
    answer_rate: float
    answer_memory: int
    large_at_once: int
    large_waiting: int
    rendering_memory: int


@dataclass(frozen=True)
class Settings:
    """What the environment says; see docs/operations.md for each variable."""

    database_url: str = field(repr=False)
    database_admin_url: str = field(repr=False)
    redis_url: str | None = field(repr=False)
    master_keys: MasterKeys = field(repr=False)
    base_url: str
    log_origin: str
    log_head_url: str | None
    root_admin_key: str | None = field(repr=False)
    webhook_allowed_networks: tuple[Network, ...]
    webhook_ca_file: str | None
    tsa_url: str | None
    tsa_ca_file: tuple[Certificate, ...]
    witness_policy: Policy | None
    log_require_quorum: bool
    log_quorum_grace_seconds: float
    retry_schedule: tuple[float, ...]
    pause_seconds: float
    history_days: int
    disable_after_days: float
    digest_settle_seconds: float
    smtp_url: MailServer | None
    mail_from: str
    mail_folder: Path
    rate_limit: Rate
    tenant_rate_limit: Rate
    address_rate_limit: Rate
    tenant_stored_mib: int
    tenant_records: int
    trusted_proxies: tuple[Network, ...]
    proxy_header: str
    web: "WebLimits"
    metrics_token: str | None = field(repr=False)
    log_level: str
    log_format: str
    database_pool_size: int
    database_prepare_threshold: int | None

    @property
    def first_wait(self) -> timedelta:
        """How long a delivery waits for its first attempt."""
        return timedelta(seconds=self.retry_schedule[0])

    @property
    def first_pause(self) -> timedelta:
        """How long the first pause of a failing lane lasts."""
        return timedelta(seconds=self.pause_seconds)

    @property
    def disable_after(self) -> timedelta:
        """How long a webhook may only fail before it is disabled."""
        return timedelta(days=self.disable_after_days)

    @property
    def digest_settle(self) -> timedelta:
        """How old the oldest new finding is at least when a digest is made."""
        return timedelta(seconds=self.digest_settle_seconds)

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> "Settings":
        """Read the settings from a mapping such as `os.environ`.

        Raises `SettingError` at the first variable that is missing or wrong.
        """
        database_url = _read(environ, "DATABASE_URL", values.database_url)
        base_url = _read(environ, "BASE_URL", values.base_url)
        return cls(
            database_url=database_url,
            database_admin_url=_read(
                environ, "DATABASE_ADMIN_URL", values.database_url, database_url
            ),
            redis_url=_read(environ, "REDIS_URL", values.redis_url, None),
            master_keys=_read(environ, "MASTER_KEYS", MasterKeys.parse),
            base_url=base_url,
            log_origin=_log_origin(environ, base_url),
            log_head_url=_read(environ, "LOG_HEAD_URL", values.head_url, None),
            root_admin_key=_read(environ, "ROOT_ADMIN_KEY", values.api_key, None),
            webhook_allowed_networks=_read(
                environ, "WEBHOOK_ALLOWED_NETWORKS", values.networks, ()
            ),
            webhook_ca_file=_read(environ, "WEBHOOK_CA_FILE", values.ca_file, None),
            **_anchoring(environ),
            retry_schedule=_read(environ, "RETRY_SCHEDULE", values.schedule, RETRY_SCHEDULE),
            pause_seconds=_read(environ, "PAUSE_SECONDS", values.positive, 30.0),
            history_days=_read(environ, "HISTORY_DAYS", values.whole_days, 90),
            disable_after_days=_read(environ, "DISABLE_AFTER_DAYS", values.positive, 5.0),
            digest_settle_seconds=_read(environ, "DIGEST_SETTLE_SECONDS", values.seconds, 900.0),
            smtp_url=_read(environ, "SMTP_URL", MailServer.parse, None),
            mail_from=_mail_from(environ),
            mail_folder=Path(environ.get("DATA_DIR") or ".data") / "mail",
            rate_limit=_read(environ, "RATE_LIMIT", Rate.parse, Rate(60_000, 60)),
            tenant_rate_limit=_read(environ, "TENANT_RATE_LIMIT", Rate.parse, Rate(120_000, 60)),
            address_rate_limit=_read(environ, "ADDRESS_RATE_LIMIT", Rate.parse, Rate(6_000, 60)),
            tenant_stored_mib=_read(environ, "TENANT_STORED_MIB", values.most, 102_400),
            tenant_records=_read(environ, "TENANT_RECORDS", values.most, 50_000_000),
            trusted_proxies=_read(environ, "TRUSTED_PROXIES", values.proxies, ()),
            proxy_header=_read(
                environ, "PROXY_HEADER", values.proxy_header, forwarded.X_FORWARDED_FOR
            ),
            web=_web_limits(environ),
            metrics_token=environ.get("METRICS_TOKEN") or None,
            log_level=_read(environ, "LOG_LEVEL", values.log_level, "INFO"),
            log_format=_read(environ, "LOG_FORMAT", values.log_format, "json"),
            database_pool_size=_read(environ, "DATABASE_POOL_SIZE", values.count, 10),
            database_prepare_threshold=_read(
                environ, "DATABASE_PREPARE_THRESHOLD", values.count, None
            ),
        )


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
    """Read the `NAME=value` files that `make up` keeps in its data folder; empty without them."""
    kept: dict[str, str] = {}
    for name in ("secrets", "env"):
        file = data_dir / name
        if file.is_file():
            for line in file.read_text("utf-8").splitlines():
                for word in shlex.split(line, comments=True):
                    variable, _, value = word.partition("=")
                    kept[variable] = value
    return kept


def _read(
    environ: Mapping[str, str],
    name: str,
    convert: Callable[[str], _Value],
    *default: _Value | None,
) -> _Value:
    """Convert one variable; an empty one counts as not set."""
    text = environ.get(name, "").strip()
    if not text:
        if default:
            return default[0]  # type: ignore[return-value]  # None only where the field admits it
        raise SettingError(f"{name} is not set: see docs/operations.md (or run `make up`).")
    try:
        return convert(text)
    except (ValueError, OSError) as error:
        raise SettingError(f"{name} is wrong: {error}") from error


def _log_origin(environ: Mapping[str, str], base_url: str) -> str:
    """Read the log's origin; by default it is BASE_URL without its scheme."""
    parts = urlsplit(base_url)
    host = parts.netloc.rpartition("@")[2]
    try:
        by_default = values.origin(host + parts.path)
    except ValueError:
        by_default = values.origin(host)
    return _read(environ, "LOG_ORIGIN", values.origin, by_default)


def _web_limits(environ: Mapping[str, str]) -> WebLimits:
    """Read the limits of a web process."""
    return WebLimits(
        threads=_read(environ, "WEB_THREADS", values.count, 16),
        body_seconds=_read(environ, "BODY_SECONDS", values.positive, 20.0),
        body_rate=_read(environ, "BODY_RATE", values.rate, 16384.0),
        body_memory=_read(environ, "BODY_MEMORY_MIB", values.mebibytes, 32 * values.MIB),
        answer_seconds=_read(environ, "ANSWER_SECONDS", values.positive, 30.0),
        answer_rate=_read(environ, "ANSWER_RATE", values.rate, 16384.0),
        answer_memory=_read(environ, "ANSWER_MEMORY_MIB", values.mebibytes, 32 * values.MIB),
        large_at_once=_read(environ, "LARGE_AT_ONCE", values.count, 2),
        large_waiting=_read(environ, "LARGE_WAITING", values.count, 6),
        rendering_memory=_read(environ, "RENDERING_MEMORY_MIB", values.mebibytes, 16 * values.MIB),
    )


class _Anchoring(TypedDict):
    tsa_url: str | None
    tsa_ca_file: tuple[Certificate, ...]
    witness_policy: Policy | None
    log_require_quorum: bool
    log_quorum_grace_seconds: float


def _anchoring(environ: Mapping[str, str]) -> _Anchoring:
    """Read who vouches for the log besides the service itself."""
    url = _read(environ, "TSA_URL", values.operator_url, None)
    nothing: tuple[Certificate, ...] = ()
    certificates = _read(environ, "TSA_CA_FILE", values.certificates, nothing)
    for name, other, one, both in (
        ("TSA_CA_FILE", "TSA_URL", url, certificates),
        ("TSA_URL", "TSA_CA_FILE", certificates, url),
    ):
        if one and not both:
            raise SettingError(f"{name} is not set, and {other} is: set both, or neither.")
    policy = _read(environ, "WITNESS_POLICY", values.policy, None)
    return {
        "tsa_url": url,
        "tsa_ca_file": certificates,
        "witness_policy": policy,
        "log_require_quorum": _require_quorum(environ, policy),
        "log_quorum_grace_seconds": _read(
            environ, "LOG_QUORUM_GRACE_SECONDS", values.seconds, 120.0
        ),
    }


def _require_quorum(environ: Mapping[str, str], policy: Policy | None) -> bool:
    """Read whether nothing is published without the quorum, which then has to be one."""
    required = _read(environ, "LOG_REQUIRE_QUORUM", values.switch, None)
    if not required:
        return False
    if policy is None:
        raise SettingError("WITNESS_POLICY is not set, and LOG_REQUIRE_QUORUM=1 needs one.")
    if policy.quorum == NONE:
        raise SettingError(
            "WITNESS_POLICY says `quorum none`, and LOG_REQUIRE_QUORUM=1 needs a quorum."
        )
    if not policy.is_met_by(
        each.key for each in policy.witnesses if each.url is not None and each.key.checkable
    ):
        raise SettingError(
            "WITNESS_POLICY has a quorum that nobody here can make, and LOG_REQUIRE_QUORUM=1 needs"
            " one: give enough of its witnesses a URL and an Ed25519 key (algorithm 04)."
        )
    return True


def _mail_from(environ: Mapping[str, str]) -> str:
    """Read the sender's address; a mail that only becomes a file may do without."""
    if environ.get("SMTP_URL", "").strip():
        return _read(environ, "MAIL_FROM", values.mailbox)
    return _read(environ, "MAIL_FROM", values.mailbox, "record-service@localhost.invalid")
