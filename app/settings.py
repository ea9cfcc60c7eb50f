"""Every setting of the service, read once from the environment into one frozen object.

This is the only module that reads `os.environ`. A wrong value ends the program with one line that
names the variable and the fix. When `DATABASE_URL` is not set, the files that `make up` keeps under
`DATA_DIR` are read instead, so that operators' commands need no more than the same `DATA_DIR`.
"""

import ipaddress
import os
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TypedDict, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

from cryptography.x509 import Certificate

from app.ledger.notes import check_name
from app.ledger.policy import Policy
from app.lib import api_keys, timestamps
from app.lib.addresses import EVERYWHERE, BadURL, Network, check_url
from app.lib.sealing import MasterKeys

VERSION = "0.1.0"

# Seconds before each attempt, the first included: about three days in all.
RETRY_SCHEDULE = (0.0, 5.0, 300.0, 1800.0, 7200.0, 18000.0, 36000.0, 50400.0, 72000.0, 86400.0)

_Value = TypeVar("_Value")


class SettingError(ValueError):
    """A setting is missing or cannot be read; the text names the variable and the fix."""


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
    retry_schedule: tuple[float, ...]
    pause_seconds: float
    history_days: int
    disable_after_days: float
    rate_limit: str
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

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> "Settings":
        """Read the settings from a mapping such as `os.environ`.

        Raises `SettingError` at the first variable that is missing or wrong.
        """
        database_url = _read(environ, "DATABASE_URL", _database_url)
        base_url = _read(environ, "BASE_URL", _base_url)
        return cls(
            database_url=database_url,
            database_admin_url=_read(environ, "DATABASE_ADMIN_URL", _database_url, database_url),
            redis_url=_read(environ, "REDIS_URL", _redis_url, None),
            master_keys=_read(environ, "MASTER_KEYS", MasterKeys.parse),
            base_url=base_url,
            log_origin=_log_origin(environ, base_url),
            log_head_url=_read(environ, "LOG_HEAD_URL", _head_url, None),
            root_admin_key=_read(environ, "ROOT_ADMIN_KEY", _api_key, None),
            webhook_allowed_networks=_read(environ, "WEBHOOK_ALLOWED_NETWORKS", _networks, ()),
            webhook_ca_file=_read(environ, "WEBHOOK_CA_FILE", _existing_file, None),
            **_anchoring(environ),
            retry_schedule=_read(environ, "RETRY_SCHEDULE", _schedule, RETRY_SCHEDULE),
            pause_seconds=_read(environ, "PAUSE_SECONDS", _positive, 30.0),
            history_days=_read(environ, "HISTORY_DAYS", _whole_days, 90),
            disable_after_days=_read(environ, "DISABLE_AFTER_DAYS", _positive, 5.0),
            rate_limit=environ.get("RATE_LIMIT") or "300000 per minute",
            metrics_token=environ.get("METRICS_TOKEN") or None,
            log_level=_read(environ, "LOG_LEVEL", _log_level, "INFO"),
            log_format=_read(environ, "LOG_FORMAT", _log_format, "json"),
            database_pool_size=_read(environ, "DATABASE_POOL_SIZE", _count, 10),
            database_prepare_threshold=_read(environ, "DATABASE_PREPARE_THRESHOLD", _count, None),
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


def _database_url(text: str) -> str:
    scheme, separator, rest = text.partition("://")
    if not separator or scheme.split("+")[0] not in ("postgres", "postgresql"):
        raise ValueError("use postgresql://user:password@host:port/database")
    return f"postgresql+psycopg://{rest}"


def _redis_url(text: str) -> str:
    parts = urlsplit(text)
    # Reading the port refuses one that is no number.
    known = parts.scheme in ("redis", "rediss") and parts.hostname and (parts.port or 6379)
    if not known or not re.fullmatch(r"/?|/[0-9]{1,5}", parts.path):
        raise ValueError("use redis://:password@host:port/0, or rediss:// for TLS")
    return text


def _api_key(text: str) -> str:
    if not api_keys.well_formed(text):
        raise ValueError("make one with `python -m app.manage generate root-admin-key`")
    return text


def _base_url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
        raise ValueError("use the address callers see, such as https://records.example.com")
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))


def _log_origin(environ: Mapping[str, str], base_url: str) -> str:
    """Read the log's origin; by default it is BASE_URL without its scheme."""
    parts = urlsplit(base_url)
    host = parts.netloc.rpartition("@")[2]
    try:
        by_default = _origin(host + parts.path)
    except ValueError:
        by_default = _origin(host)
    return _read(environ, "LOG_ORIGIN", _origin, by_default)


def _origin(text: str) -> str:
    """C2SP tlog-checkpoint: a URL without its scheme, and a name that a key can have."""
    if "://" in text:
        raise ValueError("leave the scheme out: records.example.com/log")
    return check_name(text)


def _head_url(text: str) -> str:
    parts = urlsplit(text)
    if parts.query or parts.fragment:
        raise ValueError("it has no query and no fragment")
    if parts.scheme == "s3" and parts.netloc and parts.path.strip("/"):
        if find_spec("obstore") is None:
            raise ValueError("s3: needs the package obstore: install the extra `s3`")
    elif parts.scheme == "file" and not parts.netloc and parts.path[-1:] not in ("", "/"):
        if not Path(unquote(parts.path)).parent.is_dir():
            raise ValueError(f"no folder {Path(unquote(parts.path)).parent}")
    else:
        raise ValueError("use file:///folder/file or s3://bucket/key")
    return text


class _Anchoring(TypedDict):
    tsa_url: str | None
    tsa_ca_file: tuple[Certificate, ...]
    witness_policy: Policy | None


def _anchoring(environ: Mapping[str, str]) -> _Anchoring:
    """Read who vouches for the log besides the service itself."""
    url = _read(environ, "TSA_URL", _operator_url, None)
    nothing: tuple[Certificate, ...] = ()
    certificates = _read(environ, "TSA_CA_FILE", _certificates, nothing)
    for name, other, one, both in (
        ("TSA_CA_FILE", "TSA_URL", url, certificates),
        ("TSA_URL", "TSA_CA_FILE", certificates, url),
    ):
        if one and not both:
            raise SettingError(f"{name} is not set, and {other} is: set both, or neither.")
    policy = _read(environ, "WITNESS_POLICY", _policy, None)
    return {"tsa_url": url, "tsa_ca_file": certificates, "witness_policy": policy}


def _operator_url(text: str) -> str:
    try:
        check_url(text, EVERYWHERE)
    except BadURL as error:
        raise ValueError(error.detail) from None
    return text


def _certificates(path: str) -> tuple[Certificate, ...]:
    return timestamps.read_certificates(Path(_existing_file(path)).read_bytes())


def _policy(path: str) -> Policy:
    policy = Policy.parse(Path(_existing_file(path)).read_bytes())
    for witness in policy.witnesses:
        if witness.url is not None:
            _operator_url(witness.url)
    return policy


def _networks(text: str) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip())


def _existing_file(text: str) -> str:
    if not Path(text).is_file():
        raise ValueError(f"no file {text}")
    return text


def _schedule(text: str) -> tuple[float, ...]:
    seconds = tuple(float(part) for part in text.split(","))
    if not all(0 <= second <= 86400 * 7 for second in seconds) or len(seconds) > 50:
        raise ValueError("use at most 50 numbers of seconds separated by commas, such as 0,5,300")
    return seconds


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < 1e6:
        raise ValueError("use a number above 0")
    return number


def _whole_days(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 3650:
        raise ValueError("use a whole number of days from 1 to 3650")
    return int(text)


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 500:
        raise ValueError("use a whole number from 1 to 500")
    return int(text)


def _log_level(text: str) -> str:
    if text.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"):
        raise ValueError("use DEBUG, INFO, WARNING, ERROR or CRITICAL")
    return text.upper()


def _log_format(text: str) -> str:
    if text not in ("json", "console"):
        raise ValueError("use json or console")
    return text
