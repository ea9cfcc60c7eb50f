"""A timestamp authority (RFC 3161) for development: `openssl ts` behind a small HTTP server.

    python -m dev.tsa --folder .data/tsa

Its root and its own certificate are made at the first start and stay in the folder. For
development only: its operator can set any time.
"""

import argparse
import datetime as dt
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

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dev.refusal import CannotStart

HOST = "127.0.0.1"

_DAYS = 3650
_RSA_BITS = 2048
_MOST_BYTES = 16 * 1024
_OPENSSL_SECONDS = 10.0
_POLL_SECONDS = 0.05

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

_Key = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


class KeyType(enum.StrEnum):
    """The authority's signing key and certificates."""

    RSA = "rsa"
    P256 = "p256"


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
            _make(self.folder, key_type)
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


def _make(folder: Path, key_type: KeyType) -> None:
    """Make the root and the authority's certificate; the root last, for it says all is there."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    root_key, own_key = _new_key(key_type), _new_key(key_type)
    root_name, own_name = _name("Development TSA root"), _name("Development TSA")
    root = (
        _certificate(root_name, root_name, root_key, root_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(root_key, hashes.SHA256())
    )
    # Critical, and alone (RFC 3161 section 2.3).
    purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.TIME_STAMPING])
    own = (
        _certificate(own_name, root_name, own_key, root_key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(purpose, critical=True)
        .sign(root_key, hashes.SHA256())
    )
    for name, key in (("root.key", root_key), ("tsa.key", own_key)):
        (folder / name).touch(0o600)
        (folder / name).write_bytes(_private_bytes(key))
    (folder / "tsa.pem").write_bytes(own.public_bytes(serialization.Encoding.PEM))
    (folder / "serial").write_text("01\n", "ascii")
    (folder / "root.pem").write_bytes(root.public_bytes(serialization.Encoding.PEM))


def _new_key(key_type: KeyType) -> _Key:
    if key_type is KeyType.P256:
        return ec.generate_private_key(ec.SECP256R1())
    return rsa.generate_private_key(public_exponent=65537, key_size=_RSA_BITS)


def _private_bytes(key: _Key) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: _Key, signer: _Key
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    above = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + dt.timedelta(days=_DAYS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(above, critical=False)
    )


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
