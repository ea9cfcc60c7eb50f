"""The stores with a second each, as the service's settings name them, and whether all is well."""

import json
import secrets
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import redis

from app import heartbeats, queue
from tests.deploy.debian import Host
from tests.deploy.ha.hosts import Machine, give, machines
from tests.deploy.servers import ALONE, OWNER, SERVICE, UNPRIVILEGED, Servers
from tests.support.faults import until

# Patroni makes and copies a cluster; on a busy machine that takes its time.
_START_SECONDS = 180.0
_SERVICE = "records"


@dataclass(frozen=True)
class Cluster(Servers):
    """Both PostgreSQL, both Redis and what stands before them."""

    machines: dict[str, Machine]

    def database_url(self, role: str, database: str, *, pooled: bool = False) -> str:
        """Return the list of both hosts, or PgBouncer's address if `pooled`."""
        login = f"postgresql://{role}:{self.passwords[role]}@"
        if pooled:
            return f"{login}{self.machines['c'].address}:6432/{database}"
        hosts = ",".join(f"{self.machines[name].address}:5432" for name in "ab")
        return f"{login}{hosts}/{database}?target_session_attrs=read-write"

    def redis_url(self, number: int) -> str:
        """Return the address that names all Sentinels."""
        sentinels = ",".join(f"{each.address}:26379" for each in self.machines.values())
        return f"redis+sentinel://:{self.passwords['redis']}@{sentinels}/{_SERVICE}/{number}"

    @property
    def redis_settings(self) -> dict[str, str]:
        """Nothing: Redis is asked without TLS here."""
        return {}

    @property
    def primary(self) -> Machine:
        """The host whose PostgreSQL is the primary, as Patroni says."""
        (name,) = [each["name"] for each in self._members() if each["role"] == "leader"]
        return self.machines[name]

    @property
    def standby(self) -> Machine:
        """The other one."""
        (other,) = [each for each in self._both if each is not self.primary]
        return other

    @property
    def redis_primary(self) -> Machine:
        """The host whose Redis is the primary, as a Sentinel says."""
        (state, *_) = [told for each in self.machines.values() if (told := _asked(each))]
        (found,) = [each for each in self._both if each.address == state["ip"]]
        return found

    def switch_over(self) -> None:
        """Ask Patroni for the other primary: an operator's own act."""
        body = json.dumps({"leader": self.primary.name, "candidate": self.standby.name})
        url = f"http://{self.primary.address}:8008/switchover"
        with urllib.request.urlopen(url, body.encode(), timeout=60):
            pass

    def is_whole(self) -> bool:
        """Say whether each store has its second, and each Sentinel knows it."""
        members = {each["role"]: each["state"] for each in self._members()}
        if members.get("leader") != "running" or "sync_standby" not in members:
            return False
        if members["sync_standby"] not in ("running", "streaming"):
            return False
        states = [_asked(each) for each in self.machines.values()]
        return all(
            state and state["flags"] == {"master"} and _replicas(machine) == 1
            for state, machine in zip(states, self.machines.values(), strict=True)
        )

    def has_other_primary(self, than: Machine) -> bool:
        """Say whether another host's PostgreSQL takes writes."""
        url = self.admin_url("postgres")
        try:
            with closing(psycopg.connect(url, connect_timeout=2)) as connection:
                return connection.info.host != than.address
        except psycopg.OperationalError:
            return False

    def has_other_redis(self, than: Machine) -> bool:
        """Say whether the Sentinels have agreed on another host's Redis."""
        states = [found for each in self.machines.values() if (found := _asked(each))]
        return all(state["ip"] != than.address for state in states)

    def leading_scheduler(self, running: Mapping[str, list[int]]) -> str:
        """Return which of the schedulers has the lock, by the report of its process."""
        with queue.connect(self.redis_url(0), 2.0) as client:
            (pid,) = [each.pid for each in heartbeats.processes(client) if each.leads]
        (found,) = [name for name, pids in running.items() if pid in pids]
        return found

    @property
    def _both(self) -> list[Machine]:
        return [self.machines[name] for name in "ab"]

    def _members(self) -> list[dict[str, Any]]:
        """Return what Patroni knows of its members; nothing while it does not answer."""
        for machine in self._both:
            try:
                with urllib.request.urlopen(
                    f"http://{machine.address}:8008/cluster", timeout=3
                ) as answer:
                    found: list[dict[str, Any]] = json.load(answer)["members"]
            except OSError:
                continue
            if any(each["role"] == "leader" for each in found):
                return found
        return []


def _asked(machine: Machine) -> dict[str, Any]:
    """Return what a host's Sentinel says of Redis; nothing if it does not answer."""
    try:
        with redis.Redis(machine.address, 26379, socket_timeout=2.0) as sentinel:
            state: Any = sentinel.sentinel_master(_SERVICE)
            return {**state, "flags": {*state["flags"].split(",")}}
    except redis.RedisError:
        return {}


def _replicas(machine: Machine) -> int:
    """Count the replicas that a host's Sentinel finds well."""
    try:
        with redis.Redis(machine.address, 26379, socket_timeout=2.0) as sentinel:
            found: Any = sentinel.sentinel_slaves(_SERVICE)
    except redis.RedisError:
        return 0
    return sum(each["flags"] == "slave" and each["master-link-status"] == "ok" for each in found)


@contextmanager
def serving(host: Host, folder: Path) -> Iterator[Cluster]:
    """Run all of it in `folder`, an empty one, for the length of the `with`."""
    names = ("postgres", OWNER, SERVICE, ALONE, "redis", "superuser", "replication")
    passwords = {name: secrets.token_hex(12) for name in names}
    passwords["superuser"] = passwords["postgres"]
    with machines(host, folder, passwords) as made:
        cluster = Cluster(folder, host, folder, 5432, 6432, 6379, passwords, made)
        users = "".join(f'"{name}" "{passwords[name]}"\n' for name in (OWNER, SERVICE, ALONE))
        give(made["c"], "userlist.txt", users)
        for machine in made.values():
            machine.start("etcd")
        for name in "ab":
            made[name].start("redis", "patroni")
        for machine in made.values():
            machine.start("sentinel")
        made["c"].start("haproxy", "pgbouncer")
        until(cluster.is_whole, _START_SECONDS, pause=0.5)
        with closing(psycopg.connect(cluster.admin_url("postgres"), autocommit=True)) as owner:
            for role in (OWNER, SERVICE, ALONE):
                made_role = f"CREATE ROLE {role} {UNPRIVILEGED} PASSWORD '{passwords[role]}'"
                owner.execute(made_role.encode())
        yield cluster
