"""A second worker, on another host: the Procfile's line as written, where the network is cut."""

import sys
from collections.abc import Mapping
from pathlib import Path

from dev import env_file, processes, procfile
from dev.stack import ROOT
from tests.e2e.harness.elsewhere import Elsewhere
from tests.e2e.harness.stack import PLAIN


class OtherWorker:
    """A worker of a service whose `DATA_DIR` is `folder / "data"`; it says its words in `log`."""

    def __init__(self, host: Elsewhere, folder: Path, settings: Mapping[str, str]) -> None:
        """Start it with the service's settings, which name its stores by their loopback address."""
        self.host = host
        self.log = folder / "other-worker"
        secrets = env_file.read(folder / "data" / "secrets")
        reached = {name: self._from_there(settings[name]) for name in ("DATABASE_URL", "REDIS_URL")}
        environ = {
            **PLAIN,
            **settings,
            **reached,
            "MASTER_KEYS": secrets["MASTER_KEYS"],
            "PATH": f"{Path(sys.executable).parent}:{PLAIN['PATH']}",
            "PYTHONUNBUFFERED": "1",
            "TZ": "UTC",
        }
        line = procfile.read(ROOT / "Procfile")["worker"]
        with self.log.open("ab") as log:
            self._process = processes.start(
                host.command(["/bin/sh", "-c", line]),
                env=environ,
                cwd=ROOT,
                output=log,
            )

    @property
    def address(self) -> str:
        """The address that its requests come from."""
        return str(self.host.there.ip)

    @property
    def fenced(self) -> int:
        """How often it came too late with outcomes: others had taken its rows over."""
        return self.log.read_text("utf-8", "replace").count('"outcomes_fenced"')

    def require_alive(self) -> None:
        """Fail if it has ended."""
        code = self._process.poll()
        assert code is None, f"the other worker ended by itself, with {code}: {self.log}"

    def stop(self) -> None:
        """Stop it, and wait until it has gone."""
        processes.stop(self._process)

    def _from_there(self, url: str) -> str:
        return url.replace("@127.0.0.1:", f"@{self.host.here.ip}:")
