"""`make demo`: brings up the service, shows it at work, and checks every claim it makes.

With STAY=0 it ends with its verdict as exit code; otherwise it leaves the service running until
Ctrl-C. An unmet claim ends it at once, with one line and exit code 1.
"""

import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from app.settings import environment
from dev import processes
from dev.data_dir import DataDir
from dev.demo import proofs, session, webhooks
from dev.demo.receivers import Receiver, TicketDesk, takes_everything, takes_nothing
from dev.demo.scene import Api, Scene, Telling, Unmet
from dev.refusal import CannotStart
from dev.runner import StopRequest
from dev.stack import Stack
from dev.tsa import TimestampAuthority

_INTERRUPTED = 130
_DOWN_SECONDS = 2.0
_POLL_SECONDS = 0.1

# Retries within seconds instead of days, so that one can watch them; mails become files. A digest
# waits for as long as the session takes, on a busy machine too, to have all of its findings.
_SETTINGS = {
    "RETRY_SCHEDULE": "0,1,1,2",
    "PAUSE_SECONDS": "1",
    "DIGEST_SETTLE_SECONDS": "8",
    "SMTP_URL": "",
}
_LOOPBACK = "127.0.0.0/8,::1/128"

_STAYS = """\
The console: {base_url}/console
  sign in with {key}
The API's documentation: {base_url}/docs
From another terminal:
  . {env}
  curl -H "Authorization: Bearer $SERVICE_API_KEY" "$BASE_URL/v1/findings?severity=critical"
This stack retries within seconds; `make up` runs the same data on the real schedule."""


class _Interrupted(Exception):
    """A stop was requested before the end."""


def main() -> int:
    """Run the demo; return 0 when every claim held, 1 when one did not, 130 when interrupted."""
    processes.begin_program("dev.demo", __doc__)
    try:
        return _demo(environment(), Telling(sys.stdout), StopRequest())
    except Unmet as error:
        print(f"\ndemo: NOT MET: {error}", file=sys.stderr)
    except (CannotStart, OSError) as error:
        print(f"\ndemo: {error}", file=sys.stderr)
    except _Interrupted:
        print("\ndemo: interrupted before its end", file=sys.stderr)
        return _INTERRUPTED
    return 1


def _demo(environ: Mapping[str, str], telling: Telling, stop: StopRequest) -> int:
    # In a data folder that no other run uses.
    with DataDir(Path(environ.get("DATA_DIR") or ".data")) as home:
        log = home.path / "demo.log"
        log.touch(0o600)
        log.write_bytes(b"")
    allowed = environ.get("WEBHOOK_ALLOWED_NETWORKS") or _LOOPBACK
    environ = {
        **environ,
        "DATA_DIR": str(log.parent),
        "WEBHOOK_ALLOWED_NETWORKS": allowed,
        **_SETTINGS,
    }
    with ExitStack() as ending:
        if not environ.get("TSA_URL"):
            try:
                authority = ending.enter_context(TimestampAuthority(log.parent / "tsa"))
                environ |= {"TSA_URL": authority.url, "TSA_CA_FILE": str(authority.ca_file)}
            except CannotStart as error:
                telling.say(f"Without a timestamp authority: {error}.")
        stack = Stack(environ, log)
        telling.say(f"Starting PostgreSQL, Valkey, web, worker and scheduler (log: {log}) …")
        stack.start()
        ending.callback(stack.stop, lambda: stop.forced)
        scene = _scene(stack, environ, telling, stop, ending)
        _tell(scene)
        if environ.get("STAY") != "0":
            _stay(scene, stack, stop)
        webhooks.switch_off(scene.api)
        telling.say("Stopping.")
    return 0


def _scene(
    stack: Stack, environ: Mapping[str, str], telling: Telling, stop: StopRequest, ending: ExitStack
) -> Scene:
    """Return the scene once the stack is up."""

    def heed() -> None:
        if stop:
            raise _Interrupted
        stack.require_alive()

    began = time.monotonic()
    while not stack.is_up():
        heed()
        time.sleep(_POLL_SECONDS)
    values = stack.values()
    telling.say(f"All of it is up after {time.monotonic() - began:.1f} s: {values['BASE_URL']}")
    desk = TicketDesk(_DOWN_SECONDS)
    return Scene(
        telling,
        Api(values["BASE_URL"], values["SERVICE_API_KEY"]),
        values["BASE_URL"],
        ending.enter_context(Receiver("security", takes_everything)),
        ending.enter_context(Receiver("ticketing", desk)),
        desk,
        heed,
        stack.now,
        Path(environ["TSA_CA_FILE"]) if environ.get("TSA_URL") else None,
        stack.env_file.parent / "mail",
    )


def _tell(scene: Scene) -> None:
    """Tell the main job in order. Raises `Unmet` at the first claim that does not hold."""
    security, ticketing = webhooks.two_webhooks(scene)
    session.an_address(scene)
    expected, record = session.a_session(scene, security)
    webhooks.what_arrived_at_once(scene, security, expected)
    failed = webhooks.what_was_retried(scene, ticketing, expected)
    webhooks.a_replay(scene, ticketing, failed)
    proofs.what_proves_it(scene, record)
    session.the_digest(scene, expected)
    proofs.the_books(scene, security, ticketing)
    proofs.what_holds_the_chain(scene)
    proofs.what_one_link_opens(scene, record)
    scene.telling.chapter("The verdict")
    scene.telling.say(f"{scene.telling.claims} claims were checked, and all of them hold.")


def _stay(scene: Scene, stack: Stack, stop: StopRequest) -> None:
    """Leave everything running until a stop is requested."""
    with Receiver("billing", takes_nothing) as billing:
        webhooks.leave_work(scene, billing)
        scene.telling.chapter("It stays up until Ctrl-C")
        key = stack.values()["SERVICE_API_KEY"]
        for line in _STAYS.splitlines():
            scene.telling.say(line.format(base_url=scene.base_url, env=stack.client_env, key=key))
        while not stop:
            stack.require_alive()
            time.sleep(_POLL_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
