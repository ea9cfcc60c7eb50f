"""Entry point of granian's workers: `granian --interface asginl --factory app.asgi:create_app`."""

import gc
import multiprocessing
import resource
import signal
import sys
from typing import TYPE_CHECKING

from app.lib import process

if TYPE_CHECKING:
    from app.lib.gateway.gateway import Gateway

_TURN_SECONDS = 0.001


def create_app() -> "Gateway":
    """Import the application and put it behind an event loop; raises `SettingError`.

    While a worker process starts, a stop signal ends it at once: it serves no requests yet.
    """
    process.end_with_parent()
    # Each connection is an open file.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if multiprocessing.parent_process() is not None:
        _end_when_told()
    with process.importing():
        from app.web import create_gateway  # noqa: PLC0415  # takes a second; a signal may end it

        gateway = create_gateway()
        # Afterwards a full collection, which stops all threads, takes 40 ms among large bodies; it
        # took 350 with all that was imported.
        gc.collect()
    # A full collection among the objects of a large body finds nothing: a hundred times fewer.
    often, seldom, full = gc.get_threshold()
    gc.set_threshold(often, seldom, 100 * full)
    # How long a busy thread keeps the interpreter from the others: the usual 5 ms add up over the
    # many times that a small request waits for it.
    sys.setswitchinterval(_TURN_SECONDS)
    return gateway


def _end_when_told() -> None:
    """Restore the default signal handlers until granian sets its worker's handlers.

    A worker inherits its master's handlers, which only set a flag in memory: it would go on, and
    be killed after `--workers-kill-timeout`.
    """
    inherited = signal.getsignal(signal.SIGTERM)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    if getattr(getattr(inherited, "__self__", None), "interrupt_signal", False):
        signal.raise_signal(signal.SIGTERM)
