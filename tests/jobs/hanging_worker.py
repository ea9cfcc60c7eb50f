"""The service's worker, with a kind of job whose step does not end while the worker lives."""

import os
import threading

from app.core.jobs.steps import Errand, Step
from app.queue import connect
from jobs.durable import handlers
from jobs.worker import broker

__all__ = ["broker"]

KIND = "hangs"

_redis = connect(os.environ["REDIS_URL"], 5.0)


def _hang() -> None:
    _redis.rpush("hanging", os.getpid())
    threading.Event().wait()


handlers.KINDS[KIND] = lambda _: lambda *_: Errand(_hang, lambda *_: Step(None, {}))  # type: ignore[index]
