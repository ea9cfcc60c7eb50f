"""A certificate authority of `openssl ca`: a root, an intermediate, and what they sign."""

import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509

from app.evidence import signing_certificates
from app.evidence.signing_certificates import SigningChain
from app.lib.crypto.signing import SigningKey

KINDS: Mapping[str, Sequence[str]] = {
    "p256": ("EC", "-pkeyopt", "ec_paramgen_curve:P-256"),
    "p384": ("EC", "-pkeyopt", "ec_paramgen_curve:P-384"),
    "ed25519": ("ED25519",),
    "rsa": ("RSA", "-pkeyopt", "rsa_keygen_bits:2048"),
    "p521": ("EC", "-pkeyopt", "ec_paramgen_curve:P-521"),
}
KNOWN = ("p256", "p384", "ed25519", "rsa")
BEGIN, END = datetime(2025, 1, 1, tzinfo=UTC), datetime(2035, 1, 1, tzinfo=UTC)
ISSUER = "basicConstraints = critical, CA:true\nkeyUsage = critical, keyCertSign, cRLSign\n"
LEAF = "basicConstraints = critical, CA:false\nkeyUsage = critical, nonRepudiation\n"
SUBJECT = {"country": "DE", "organization": "Beispiel Zahlungen GmbH", "common_name": "Records"}
_CONFIG = """\
[ca]
default_ca = this
[this]
new_certs_dir = .
database = index.txt
rand_serial = yes
default_md = default
policy = names
unique_subject = no
email_in_dn = no
[names]
countryName = optional
organizationName = optional
commonName = optional
"""


class Authority:
    """The keys and certificates of one authority, in a folder."""

    def __init__(self, folder: Path, kind: str = "p256") -> None:
        folder.mkdir()
        self.folder, self.kind = folder, kind
        (folder / "ca.cnf").write_text(_CONFIG)
        (folder / "index.txt").write_text("")
        self.make_key("root")
        self.sign("root", self.asked("root", "/O=Trust Example/CN=Trust Example Root"), by="root")
        self.make_key("middle")
        asked = self.asked("middle", "/O=Trust Example/CN=Trust Example Signing CA")
        self.sign("middle", asked, by="root")

    @property
    def root(self) -> Path:
        return self.folder / "root.pem"

    @property
    def middle(self) -> Path:
        return self.folder / "middle.pem"

    def make_key(self, name: str, kind: str | None = None) -> None:
        self._openssl("genpkey", "-algorithm", *KINDS[kind or self.kind], "-out", f"{name}.key")

    def asked(self, name: str, subject: str) -> bytes:
        """Return a request for a key of the authority's own."""
        self._openssl(
            *("req", "-new", "-utf8", "-key", f"{name}.key", "-subj", subject),
            *("-config", "ca.cnf", "-out", f"{name}.csr"),
        )
        return (self.folder / f"{name}.csr").read_bytes()

    def sign(
        self,
        name: str,
        asked: bytes,
        extensions: str = ISSUER,
        begin: datetime = BEGIN,
        end: datetime = END,
        by: str = "middle",
    ) -> bytes:
        """Sign a request, and return the certificate in PEM; it is kept as `<name>.pem`."""
        (self.folder / f"{name}.csr").write_bytes(asked)
        (self.folder / "extensions.cnf").write_text(extensions)
        signer = ("-selfsign",) if by == name else ("-cert", f"{by}.pem")
        self._openssl(
            *("ca", "-batch", "-notext", "-utf8", "-config", "ca.cnf", "-keyfile", f"{by}.key"),
            *signer,
            *("-extfile", "extensions.cnf", "-in", f"{name}.csr", "-out", f"{name}.pem"),
            *("-startdate", f"{begin:%Y%m%d%H%M%SZ}", "-enddate", f"{end:%Y%m%d%H%M%SZ}"),
        )
        return (self.folder / f"{name}.pem").read_bytes()

    def issue(
        self,
        key: SigningKey,
        extensions: str = LEAF,
        begin: datetime = BEGIN,
        end: datetime = END,
        by: str = "middle",
    ) -> bytes:
        """Return a chain over a signing key: what the operator gets and sets."""
        leaf = self.sign(
            "leaf", signing_certificates.request(key, SUBJECT), extensions, begin, end, by
        )
        return leaf + (self.folder / f"{by}.pem").read_bytes() + self.root.read_bytes()

    def _openssl(self, *arguments: str) -> None:
        done = subprocess.run(
            ["openssl", *arguments], cwd=self.folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


def unchecked(pem: bytes) -> SigningChain:
    """Return a chain whatever is wrong with it."""
    return SigningChain(tuple(x509.load_pem_x509_certificates(pem)))


DAY = timedelta(days=1)
