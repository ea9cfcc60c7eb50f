"""`make up`: the whole service on one machine, in the foreground, until Ctrl-C or SIGTERM.

The stores start first, then the Procfile's `release`, then its other lines; they stop in the other
order. What must be remembered is under `DATA_DIR`; `$DATA_DIR/env`, and `client.env` for callers,
are there while all is up.
"""

import errno
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import redis

from app import heartbeats
from app.settings import SettingError, Settings, environment
from dev import env_file, processes, procfile
from dev.data_dir import LINE, OWNED_BY, DataDir
from dev.refusal import CannotStart
from dev.runner import Output, Runner, Spawn, StopRequest
from dev.stores.postgres import EmbeddedPostgres
from dev.stores.valkey import EmbeddedValkey

ROOT = Path(__file__).resolve().parents[1]
HOST = "127.0.0.1"

# Settings of the release process alone: the others have the rights of the service's own role.
_FOR_RELEASE = ("DATABASE_ADMIN_URL", "ROOT_ADMIN_KEY")
# Further settings that operators' commands need, where they are set.
_FOR_COMMANDS = (
    "DATA_DIR",
    "WEBHOOK_ALLOWED_NETWORKS",
    "TSA_URL",
    "TSA_AUTHORIZATION",
    "TSA_CA_FILE",
    "LOG_ORIGIN",
    "LOG_HEAD_URL",
    "WITNESS_POLICY",
    "LOG_REQUIRE_QUORUM",
    "LOG_QUORUM_GRACE_SECONDS",
)
# The parts of /readyz that must be up.
_STARTED = frozenset({"web", "database", "redis", "worker", "scheduler"})
_LOOK_SECONDS, _REMIND_SECONDS = 0.5, 15.0
_STORE_OF = {"DATABASE_URL": "postgres", "DATABASE_ADMIN_URL": "postgres", "REDIS_URL": "valkey"}
# Stand-ins for the addresses of stores that have not started, for the check of all other settings.
_NOT_YET = {"DATABASE_URL": "postgresql://not-yet", "REDIS_URL": "redis://not-yet"}


def main() -> int:
    """Run until asked to stop; return 0, or 1 after one line that says what is in the way."""
    processes.begin_program("dev.up", __doc__)
    try:
        return _up(environment(), Output(sys.stdout), StopRequest())
    except (CannotStart, SettingError) as error:
        print(f"make up: {error}", file=sys.stderr)
    except OSError as error:
        print(f"make up: {error.filename or 'the system'}: {error.strerror}", file=sys.stderr)
    return 1


def _up(environ: Mapping[str, str], output: Output, stop: StopRequest) -> int:
    lines = procfile.read(ROOT / "Procfile")
    port = _port(environ)
    with DataDir(Path(environ.get("DATA_DIR") or ".data")) as home, ExitStack() as stores:
        _refuse_taken(port)
        settings = _settings(environ, home, port)
        Settings.from_environ(_NOT_YET | settings)
        runner = Runner(output, stop)
        settings |= _start_stores(settings, home, runner, stores)
        code = runner.once("release", _line("release", lines.pop("release"), settings, home))
        if code != 0 or stop:
            return 0 if stop else code
        _serve(lines, settings, home, runner, output)
    output.say("up", "stopped")
    return 0


def _serve(
    lines: Mapping[str, str],
    settings: Mapping[str, str],
    home: DataDir,
    runner: Runner,
    output: Output,
) -> None:
    """Keep the lines running until asked to stop, and announce the moment when all is up."""
    own = {name: value for name, value in settings.items() if name not in _FOR_RELEASE}
    for name, command in lines.items():
        runner.watch(name, _line(name, command, own, home))

    port = int(settings["PORT"])
    look_at = remind_at = time.monotonic()
    is_up = False

    def look() -> None:
        """Announce once what was started; what else is degraded may be so for days."""
        nonlocal is_up, look_at, remind_at
        now = time.monotonic()
        if is_up or now < look_at:
            return
        look_at = now + _LOOK_SECONDS
        try:
            status, body = _get(port, "/readyz")
            degraded = json.loads(body)["degraded"] if status == 200 else ["database"]
        except OSError:
            degraded = ["web"]
        missing = ", ".join(name for name in degraded if name in _STARTED)
        if not missing:
            is_up = True
            _announce(settings, home, output, ", ".join(degraded))
        elif now >= remind_at + _REMIND_SECONDS:
            remind_at = now
            output.say("up", f"still waiting for: {missing}")

    runner.run(look)
    output.say("up", "stopping")
    home.withdraw()
    runner.stop(*lines)


def _announce(settings: Mapping[str, str], home: DataDir, output: Output, degraded: str) -> None:
    """Say that all is up, where, and what is degraded all the same."""
    base_url = settings["BASE_URL"]
    # What callers need: an agent's shell must not have the database's password.
    for_clients = {
        "BASE_URL": base_url,
        "SERVICE_BASE_URL": base_url,
        "SERVICE_API_KEY": settings["ROOT_ADMIN_KEY"],
    }
    client_env, env = home.announce(
        for_clients,
        {
            **for_clients,
            "DATABASE_URL": settings["DATABASE_URL"],
            "REDIS_URL": settings["REDIS_URL"],
            "DATABASE_ADMIN_URL": settings.get("DATABASE_ADMIN_URL") or settings["DATABASE_URL"],
            **{name: settings[name] for name in _FOR_COMMANDS if settings.get(name)},
        },
    )
    output.say("up", f"ready at {base_url} (documentation: /docs)")
    output.say("up", f"`. {client_env}` tells a shell the address and the root admin key")
    output.say("up", f"`. {env}` tells operators' commands the stores too")
    client = f"{base_url}/client/"
    with suppress(OSError):
        status, line = _get(int(settings["PORT"]), "/client/requirement.txt")
        if status == 200:
            client = f'pip install "{line.decode().strip()}"'
    output.say("up", f"the client: {client}")
    if degraded:
        output.say("up", f"warning: degraded: {degraded} ({base_url}/readyz says why)")


def _get(port: int, path: str) -> tuple[int, bytes]:
    """GET a path of the service; return status and body. Raises `OSError` without an answer."""
    connection = http.client.HTTPConnection(HOST, port, timeout=2.0)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except http.client.HTTPException as error:
        raise OSError(str(error)) from error
    finally:
        connection.close()


def _line(name: str, command: str, env: Mapping[str, str], home: DataDir) -> Spawn:
    """Return what starts a line of the Procfile, as written."""
    marked = {**env, OWNED_BY: str(home.path), LINE: name}
    return lambda: processes.start(
        ["/bin/sh", "-c", command], env=marked, cwd=ROOT, output=subprocess.PIPE
    )


def _start_stores(
    settings: Mapping[str, str], home: DataDir, runner: Runner, stores: ExitStack
) -> dict[str, str]:
    """Start the stores for which the settings have no address; return the addresses."""
    addresses = {}
    if not settings.get("DATABASE_URL"):
        postgres = stores.enter_context(EmbeddedPostgres(home.path / "postgres"))
        runner.watch(postgres.name, postgres.spawn, postgres.process)
        addresses["DATABASE_URL"] = postgres.url
        addresses["DATABASE_ADMIN_URL"] = postgres.admin_url
    if not settings.get("REDIS_URL"):
        valkey = stores.enter_context(EmbeddedValkey(home.path / "valkey"))
        _forget_earlier_life(valkey.url)
        runner.watch(valkey.name, valkey.spawn, valkey.process)
        addresses["REDIS_URL"] = valkey.url
    return addresses


def _forget_earlier_life(redis_url: str) -> None:
    """Forget who was alive in a run that was killed: they would count as up for some seconds."""
    with redis.Redis.from_url(redis_url) as client:
        client.delete(heartbeats.REPORTING)


def _settings(environ: Mapping[str, str], home: DataDir, port: int) -> dict[str, str]:
    """Return the environment of the processes, but for the addresses of embedded stores."""
    environ = _unannounced(environ, home)
    unless_set = {"BASE_URL": f"http://{HOST}:{port}", **home.secrets()}
    settings = {
        **environ,
        **{name: environ.get(name) or value for name, value in unless_set.items()},
        "DATA_DIR": str(home.path),
        "HOST": HOST,
        "PORT": str(port),
        "TZ": "UTC",
        "PYTHONUNBUFFERED": "1",
        "PATH": f"{Path(sys.executable).parent}:{environ.get('PATH') or os.defpath}",
    }
    if not (environ.get("DATABASE_URL") and environ.get("REDIS_URL")):
        settings.setdefault("WEBHOOK_ALLOWED_NETWORKS", "127.0.0.0/8,::1/128")
    if not environ.get("DATABASE_URL"):
        settings.setdefault("DATABASE_PREPARE_THRESHOLD", "2")
        # Beside the database, not in it: restored without its folder, it is found out.
        settings["LOG_HEAD_URL"] = environ.get("LOG_HEAD_URL") or home.head_url
    return settings


def _unannounced(environ: Mapping[str, str], home: DataDir) -> dict[str, str]:
    """Return the environment without what an earlier run told this shell of its own stores."""
    stale = set()
    for name, store in _STORE_OF.items():
        kept = env_file.read(home.path / store / "secrets")
        passwords = [value for key, value in kept.items() if key.endswith("PASSWORD")]
        if any(password in environ.get(name, "") for password in passwords):
            stale.add(name)
    if stale:
        stale.add("BASE_URL")
    return {name: value for name, value in environ.items() if name not in stale}


def _port(environ: Mapping[str, str]) -> int:
    text = environ.get("PORT") or "8000"
    if not (text.isdecimal() and 0 < int(text) < 65536):
        raise CannotStart(f"PORT is wrong: {text!r} is not a number from 1 to 65535")
    return int(text)


def _refuse_taken(port: int) -> None:
    with socket.socket() as probe:
        # As a server would: what an earlier run's connections left behind is no hindrance.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise CannotStart(f"port {port} is taken: set PORT to a free one") from error
            raise CannotStart(f"port {port} cannot be used: {error.strerror}") from error


if __name__ == "__main__":
    sys.exit(main())
