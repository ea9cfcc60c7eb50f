"""A timestamp authority (RFC 3161) for development: `openssl ts` behind a small HTTP server.

    python -m dev.tsa --folder .data/tsa

Its root and its own certificate are made at the first start and stay in the folder. For
development only: its operator can set any time.
"""

import argparse
import enum
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from dev.refusal import CannotStart

HOST = "127.0.0.1"

_DAYS = "3650"
_MOST_BYTES = 16 * 1024
_OPENSSL_SECONDS = 10.0

_CONFIGURATION = """\
[tsa]
default_tsa = own

[own]
serial = {folder}/serial
signer_cert = {folder}/tsa.pem
signer_key = {folder}/tsa.key
signer_digest = sha256
default_policy = 1.3.6.1.4.1.13762.3
digests = sha256
accuracy = secs:1
ess_cert_id_alg = sha256
"""
# Beside its own certificate; openssl leaves the two in no order.
_WITH_ROOT = "certs = {folder}/root.pem\n"


class KeyType(enum.StrEnum):
    """The authority's signing key and certificates."""

    RSA = "rsa"
    P256 = "p256"


_KEYS = {
    KeyType.RSA: ("rsa:2048",),
    KeyType.P256: ("ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
}


class TimestampAuthority:
    """An authority in a folder; in a `with` it also listens, on `url`."""

    def __init__(
        self,
        folder: Path,
        key_type: KeyType = KeyType.RSA,
        port: int = 0,
        *,
        sends_root: bool = False,
        configured: str = "",
    ) -> None:
        """Make its keys and certificates if they are not there. Raises `CannotStart`.

        With `sends_root` its answers include the root beside its own certificate, as those of some
        authorities do. `configured` are further lines for openssl, such as
        `clock_precision_digits = 3`; of a name that stands twice the last line counts.
        """
        openssl = shutil.which("openssl")
        if openssl is None:
            raise CannotStart("there is no openssl on this machine, which stamps for the TSA")
        self._openssl = openssl
        self.folder = folder.resolve()
        self._port = port
        self._lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None
        if not self.ca_file.is_file():
            _make(openssl, self.folder, key_type)
        written = _CONFIGURATION + (_WITH_ROOT if sends_root else "")
        text = written.format(folder=self.folder) + configured
        (self.folder / "tsa.cnf").write_text(text, "utf-8")

    @property
    def ca_file(self) -> Path:
        """Where its root is, for TSA_CA_FILE."""
        return self.folder / "root.pem"

    @property
    def url(self) -> str:
        """Where it listens, for TSA_URL."""
        if self._server is None:
            raise RuntimeError("the authority does not listen yet")
        return f"http://{HOST}:{self._server.server_address[1]}/"

    def reply(self, query: bytes) -> bytes:
        """Answer a request with a response. Raises OSError when openssl does not."""
        with tempfile.TemporaryDirectory(dir=self.folder) as scratch, self._lock:
            asked, answered = Path(scratch, "query"), Path(scratch, "reply")
            asked.write_bytes(query)
            command = [self._openssl, "ts", "-reply", "-config", str(self.folder / "tsa.cnf")]
            ended = subprocess.run(  # noqa: S603  # openssl, with paths of ours
                [*command, "-queryfile", str(asked), "-out", str(answered)],
                check=False,
                capture_output=True,
                timeout=_OPENSSL_SECONDS,
            )
            if not answered.is_file():
                raise OSError(f"openssl ts: {ended.stderr.decode(errors='replace').strip()}")
            return answered.read_bytes()

    def __enter__(self) -> Self:
        authority = self

        class Handler(_Handler):
            reply = authority.reply

        try:
            self._server = ThreadingHTTPServer((HOST, self._port), Handler)
        except OSError as error:
            raise CannotStart(f"port {self._port}: {error.strerror}") from error
        threading.Thread(target=self._server.serve_forever, name="tsa", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


class _Handler(BaseHTTPRequestHandler):
    """Takes `application/timestamp-query` (RFC 3161 section 3.4)."""

    protocol_version = "HTTP/1.1"
    timeout = 10
    reply: Any

    def do_POST(self) -> None:
        """Answer one request."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or not 0 < int(length) <= _MOST_BYTES:
            self.send_error(400)
            return
        try:
            answer = self.reply(self.rfile.read(int(length)))
        except (OSError, subprocess.SubprocessError):
            self.send_error(500)
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/timestamp-reply")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the library's name
        """Say nothing: a timestamp is nothing to look at."""


def _make(openssl: str, folder: Path, key_type: KeyType) -> None:
    """Make the root and the authority's certificate; the root last, for it says all is there."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    scratch = folder / "root.new"

    def certify(name: str, key: str, out: Path, *options: str) -> None:
        subject = ("-subj", f"/CN={name}", "-keyout", str(folder / key), "-out", str(out))
        fresh = ("-newkey", *_KEYS[key_type], "-nodes", "-days", _DAYS)
        command = [openssl, "req", "-x509", *fresh, *subject, *options]
        made = subprocess.run(command, check=False, capture_output=True)  # noqa: S603  # as above
        if made.returncode != 0:
            raise CannotStart(f"openssl req: {made.stderr.decode(errors='replace').strip()}")

    extension = "-addext"
    is_root = (extension, "basicConstraints=critical,CA:TRUE,pathlen:0")
    certify("Development TSA root", "root.key", scratch, *is_root)
    signer = ("-CA", str(scratch), "-CAkey", str(folder / "root.key"))
    # Critical, and alone (RFC 3161 section 2.3).
    stamps = (extension, "extendedKeyUsage=critical,timeStamping")
    own = (extension, "basicConstraints=critical,CA:FALSE")
    certify("Development TSA", "tsa.key", folder / "tsa.pem", *signer, *stamps, *own)
    (folder / "serial").write_text("01\n", "ascii")
    scratch.rename(folder / "root.pem")


def main() -> int:
    """Listen until asked to stop; say what to set."""
    parser = argparse.ArgumentParser(prog="python -m dev.tsa", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(".data/tsa"))
    parser.add_argument("--port", type=int, default=3180)
    args = parser.parse_args()
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    try:
        with TimestampAuthority(args.folder, port=args.port) as authority:
            print(f"TSA_URL={authority.url}")
            print(f"TSA_CA_FILE={authority.ca_file}", flush=True)
            stopped.wait()
    except (CannotStart, OSError) as error:
        print(f"tsa: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
