"""A log that two witnesses cosign, each a server of its own."""

import socket
from collections.abc import Callable
from contextlib import ExitStack

from sqlalchemy import text

from app.ledger.policy import Policy
from tests.support.evidence.anchoring import Place
from tests.support.evidence.witnesses import Witness
from tests.support.servers.receivers import Listener, Receiver, Request


class Witnessed:
    """A place with witnesses, and the policy that names them."""

    def __init__(self, place: Place, servers: ExitStack) -> None:
        self.place = place
        self.one, self.two = Witness("witness.test/one"), Witness("witness.test/two")
        self._servers = servers
        self.urls = {each.name: self.serve(each.answer) for each in (self.one, self.two)}
        place.grow(3)
        for each in (self.one, self.two):
            each.log = place.key()
        self.name()

    def serve(self, answer: Callable[[Request], bytes | None]) -> str:
        return self._servers.enter_context(Receiver(answer)).url("/prefix/")

    def listen(self, serve: Callable[[socket.socket], None]) -> str:
        return self._servers.enter_context(Listener(serve)).url("/prefix")

    def name(self, threshold: str = "all", extra: str = "") -> Policy:
        """Name both in the policy."""
        lines = [f"witness {n} {w.vkey} {self.urls[w.name]}" for n, w in self.named()]
        lines += [extra, f"group both {threshold} one two", "quorum both"]
        policy = Policy.parse("".join(f"{line}\n" for line in lines).encode())
        self.place.set(witness_policy=policy)
        return policy

    def named(self) -> list[tuple[str, Witness]]:
        return [("one", self.one), ("two", self.two)]

    def stored(self) -> list[tuple[int, str]]:
        with self.place.owner.connect() as connection:
            query = "SELECT size, name FROM checkpoint_cosignatures ORDER BY size, name"
            return [(row.size, row.name[-3:]) for row in connection.execute(text(query))]

    def part(self, witness: Witness) -> str:
        return f"witness {witness.name}+{witness.vkey.key_hash.hex()}"
