"""`make test-deploy`: the service on Debian's own servers, deployed as README and setup.md say.

Root and apt are needed; what is missing is installed, and not started. All runs on loopback in a
temporary folder, and ends with this program. Logs stay in the folder if a check fails.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from tests.deploy import servers
from tests.deploy.command import run
from tests.deploy.debian import Host
from tests.deploy.restoring import restored
from tests.deploy.servers import Servers
from tests.deploy.variants import deployed
from tests.deploy.words import as_written

# In the order of work.
PARTS: Mapping[str, Callable[[Servers], object]] = {
    "variants": deployed,
    "words": as_written,
    "restored": restored,
}


def _work(host: Host, chosen: list[str], folder: Path) -> None:
    with servers.serving(host, folder) as running:
        for part in chosen:
            PARTS[part](running)


if __name__ == "__main__":
    run("test-deploy", __doc__, [*PARTS], {}, _work)
