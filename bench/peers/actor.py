"""A bare Dramatiq actor on its stock broker: it posts with `requests` and records nothing."""

import os
import threading

import dramatiq
import requests
from dramatiq.brokers.redis import RedisBroker

broker = RedisBroker(url=os.environ["PEER_REDIS_URL"])  # type: ignore[no-untyped-call]
dramatiq.set_broker(broker)

_thread = threading.local()


def _session() -> requests.Session:
    if not hasattr(_thread, "session"):
        _thread.session = requests.Session()
    session: requests.Session = _thread.session
    return session


@dramatiq.actor
def post(url: str, payload: str) -> None:
    """POST one payload."""
    _session().post(
        url, payload.encode(), headers={"Content-Type": "application/json"}, timeout=15
    ).raise_for_status()
