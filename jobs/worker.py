"""Entry point of the Procfile's worker: `python -m jobs --queues deliver jobs tick`.

Dramatiq imports this module in each of its processes and takes `broker` from it.
"""

import io
import sys

import dramatiq

from app.lib import process

with process.importing():
    from app import logs
    from app.lib.metric_registry import Tally
    from app.settings import SettingError, load
    from jobs.actors import registry
    from jobs.process import runtime
    from jobs.process.broker import BellBroker
    from jobs.process.middleware import Lifetime

process.end_with_parent()

try:
    _settings = load()
except SettingError as error:
    sys.exit(f"worker: {error}")
if _settings.redis_url is None:
    sys.exit("worker: REDIS_URL is not set: the worker gets its messages through Redis.")

# Dramatiq pipes the output of its workers through the main process, which slows each delivery.
# Our log line is one write, so lines do not mix without that.
if isinstance(sys.__stdout__, io.TextIOWrapper):
    sys.__stdout__.reconfigure(line_buffering=True)
    sys.stdout = sys.__stdout__
logs.configure(_settings)

_tally = Tally()
broker = BellBroker(
    _settings.redis_url,
    [Lifetime(lambda threads: runtime.start(_settings, threads, _tally), runtime.stop)],
    _tally,
)
dramatiq.set_broker(broker)
registry.declare(broker)
