"""`make test-ha`: kill each part of a deployment that has two of each, under load.

As `make test-deploy` it needs root and apt, and keeps the logs of a run that failed. It needs
network namespaces too.
"""

from pathlib import Path

from tests.deploy.command import run
from tests.deploy.debian import Host
from tests.deploy.ha import cluster
from tests.deploy.ha.ordeal import FAULTS, ordeal

_PACKAGES = {
    "patroni": "bin/patroni",
    "python3-etcd": "lib/python3/dist-packages/etcd",
    "etcd-server": "bin/etcd",
    "haproxy": "sbin/haproxy",
    "redis-sentinel": "bin/redis-sentinel",
    "iproute2": "sbin/ip",
}


def _work(host: Host, chosen: list[str], folder: Path) -> None:
    with cluster.serving(host, folder) as running:
        ordeal(running, chosen)


if __name__ == "__main__":
    run("test-ha", __doc__, [*FAULTS], _PACKAGES, _work)
