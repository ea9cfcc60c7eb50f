"""The folder in which `make up` keeps what it must remember, for one run at a time."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from app.lib.crypto import api_keys
from app.lib.crypto.sealing import MasterKeys
from dev import env_file, locks, processes
from dev.refusal import CannotStart

# In the environment of each process of a run: the folder that it belongs to, and its name.
OWNED_BY = "MAKE_UP_DATA_DIR"
LINE = "MAKE_UP_PROCESS"
# How long a killed run may take to go.
_DYING_SECONDS = 2.0


class DataDir:
    """`DATA_DIR`, in use from the beginning of the `with` to its end."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._env = self.path / "env"
        self._client_env = self.path / "client.env"
        self._lock = -1

    def __enter__(self) -> Self:
        """Make the folder if need be, take its lock, and end what a killed run has left running.

        Raises `CannotStart` when it cannot be written to, or another run is using it.
        """
        try:
            if not self.path.exists():
                self.path.mkdir(parents=True)
                # Root's PostgreSQL runs as another user, who must pass; secrets are closed.
                self.path.chmod(0o711 if os.geteuid() == 0 else 0o700)
            lock = locks.take(self.path / "lock", _DYING_SECONDS)
        except OSError as error:
            raise CannotStart(
                f"cannot write to {error.filename or self.path} ({error.strerror}): "
                "set DATA_DIR to a folder of your own"
            ) from error
        if lock is None:
            holder = (self.path / "lock").read_text().strip()
            raise CannotStart(f"{self.path} is in use by another `make up` (process {holder})")
        self._lock = lock
        processes.kill_carrying(**{OWNED_BY: str(self.path)})
        self.withdraw()
        return self

    def __exit__(self, *_: object) -> None:
        self.withdraw()
        os.close(self._lock)

    def secrets(self) -> dict[str, str]:
        """Return the keys made at the first run: `MASTER_KEYS`, and the `ROOT_ADMIN_KEY`."""
        return env_file.keep(
            self.path / "secrets", MASTER_KEYS=MasterKeys.generate, ROOT_ADMIN_KEY=api_keys.new
        )

    @property
    def head_url(self) -> str:
        """Where the head of the transparency log is kept (`LOG_HEAD_URL`)."""
        return (self.path / "log-head").as_uri()

    def announce(
        self, for_clients: Mapping[str, str], values: Mapping[str, str]
    ) -> tuple[Path, Path]:
        """Write `client.env`, then `env`, the sign that all is up, and return their paths."""
        env_file.write(self._client_env, for_clients)
        env_file.write(self._env, values)
        return self._client_env, self._env

    def withdraw(self) -> None:
        """Remove both: nothing is up yet, or any more."""
        self._env.unlink(missing_ok=True)
        self._client_env.unlink(missing_ok=True)
