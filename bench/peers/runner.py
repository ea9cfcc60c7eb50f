"""Runs the peers that deliver: fills their queues, starts them, and times their work."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from celery import Celery
from dramatiq import Message
from dramatiq.brokers.redis import RedisBroker

from bench.lab import DatabaseURLs, Lab
from bench.pace import Pace, Stopwatch
from bench.processes import ROOT, until

_DONE_SECONDS = 120.0
# Valkey's databases: the service has the first.
_OF_ACTOR, _OF_CELERY = 1, 2

_ACTOR = ("dramatiq", "bench.peers.actor", "--processes", "2", "--threads")
_CELERY = (
    *("celery", "-A", "bench.peers.celery_app", "worker", "--pool", "prefork"),
    *("--concurrency", "2", "--without-gossip", "--without-mingle", "--without-heartbeat"),
    *("--loglevel", "WARNING"),
)
_CELERY_TABLES = """
CREATE TABLE deliveries (
    id bigint PRIMARY KEY, url text NOT NULL, payload bytea NOT NULL,
    status text NOT NULL DEFAULT 'pending', attempts smallint NOT NULL DEFAULT 0,
    claimed_at timestamptz, finished_at timestamptz);
CREATE TABLE attempts (
    id bigserial PRIMARY KEY, delivery_id bigint NOT NULL, status_code smallint,
    started_at timestamptz NOT NULL, total_ms real, headers text, body bytea);
CREATE INDEX ON attempts (delivery_id);
"""


@dataclass
class Peers:
    """The peers, each with `count` times the same payload and the same receiver."""

    lab: Lab
    payload: bytes
    count: int

    def best_threads(self, choice: Sequence[int]) -> int:
        """Return the number of threads with which the bare actor is quickest."""
        if len(choice) == 1:
            return choice[0]
        return max(choice, key=lambda threads: self.actor(threads).per_second)

    def actor(self, threads: int) -> Pace:
        """Let bare Dramatiq actors post what waits in their queue."""
        redis_url = self.lab.redis_url(_OF_ACTOR)
        broker = RedisBroker(url=redis_url)  # type: ignore[no-untyped-call]
        broker.declare_queue("default")
        for _ in range(self.count):
            broker.enqueue(self._message())
        broker.close()
        last = self.lab.receiver.count() + self.count
        return self._measured(
            "actor",
            [*_ACTOR, str(threads)],
            {"PEER_REDIS_URL": redis_url, "dramatiq_queue_prefetch": "200"},
            lambda: self.lab.receiver.count() >= last,
        )

    def celery(self) -> Pace:
        """Let Celery deliver and record what waits in its queue."""
        redis_url = self.lab.redis_url(_OF_CELERY)
        with (
            self.lab.database() as urls,
            psycopg.connect(urls.admin, autocommit=True) as connection,
        ):
            self._fill_celery(urls, redis_url)
            return self._measured(
                "celery",
                _CELERY,
                {"PEER_REDIS_URL": redis_url, "PEER_DATABASE_URL": urls.admin},
                lambda: _attempts(connection) >= self.count,
            )

    def loop(self) -> Pace:
        """Let two processes post, each half of it."""
        half = str(self.count // 2)
        command = [sys.executable, "-m", "bench.peers.loop", self.lab.receiver.url(), half]
        with (
            _start(command) as first,
            _start(command) as second,
        ):
            loops = (first, second)
            for process in loops:
                _tell(process, self.payload)
                _hear(process)
            watch = Stopwatch([process.pid for process in loops])
            for process in loops:
                _tell(process, b"go")
            for process in loops:
                _hear(process)
            pace = watch.stop(self.count)
            for process in loops:
                _tell(process, b"bye")
            return pace

    def _measured(
        self, name: str, command: Sequence[str], environ: dict[str, str], done: Callable[[], bool]
    ) -> Pace:
        before = self.lab.receiver.count()
        with self.lab.running(name, command, **environ) as process:
            self.lab.receiver.wait_for(before + 1, _DONE_SECONDS)
            watch = Stopwatch([process.pid, *self.lab.store_pids().values()])
            until(done, _DONE_SECONDS, f"all deliveries by {name}")
            return watch.stop(self.count)

    def _message(self) -> "Message[None]":
        arguments = (self.lab.receiver.url(), self.payload.decode())
        return Message(
            queue_name="default", actor_name="post", args=arguments, kwargs={}, options={}
        )

    def _fill_celery(self, urls: DatabaseURLs, redis_url: str) -> None:
        with psycopg.connect(urls.admin) as connection:
            connection.execute(_CELERY_TABLES)
            connection.execute(
                "INSERT INTO deliveries (id, url, payload)"
                " SELECT n, %s, %s FROM generate_series(1, %s) AS n",
                (self.lab.receiver.url(), self.payload, self.count),
            )
        app = Celery("bench", broker=redis_url)
        with app.producer_pool.acquire() as producer:
            for place in range(1, self.count + 1):
                app.send_task("bench.peers.celery_app.deliver", [place], producer=producer)
        app.close()


def _attempts(connection: "psycopg.Connection[tuple[Any, ...]]") -> int:
    row = connection.execute("SELECT count(*) FROM attempts").fetchone()
    return int(row[0]) if row else 0


def _start(command: Sequence[str]) -> "subprocess.Popen[bytes]":
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, start_new_session=True)


def _tell(process: "subprocess.Popen[bytes]", line: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(line + b"\n")
    process.stdin.flush()


def _hear(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdout is not None
    process.stdout.readline()
