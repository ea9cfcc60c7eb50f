"""A service with a log of its own, and a stranger who reads it."""

from dataclasses import dataclass

from tests.support.callers.api import Api
from tests.support.evidence.logs import World


@dataclass
class Service:
    """A service and a log of one test."""

    world: World
    api: Api
    anyone: Api

    def publish(self) -> None:
        """Integrate what waits."""
        self.world.sequencer().run()


class Stranger:
    """Reads the log as `tlog-scales` would over the network."""

    def __init__(self, api: Api, prefix: str = "/v1/log") -> None:
        self._api = api
        self._prefix = prefix

    def get(self, *path: str) -> bytes | None:
        answer = self._api.get("/".join((self._prefix, *path)))
        return answer.data if answer.status_code == 200 else None
