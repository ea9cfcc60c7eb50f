"""Certificates of servers: one verdict on every version of Python and OpenSSL.

Python 3.13 turned RFC 5280's strict checks on, which refuse private authorities that lack an
extension. They are off everywhere; a server's name in its common name alone counts nowhere.
"""

import functools
import ssl

import certifi

_FLAGS = ssl.VerifyFlags.VERIFY_X509_TRUSTED_FIRST | ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN


def verifying(ca_file: str | None = None, pem: str | None = None) -> ssl.SSLContext:
    """Return a client's context that trusts the authorities in a file or text of PEM.

    Without either these are the system's. An intermediate or a server's own certificate among them
    is trusted as it is.
    """
    context = ssl.create_default_context(cafile=ca_file, cadata=pem)
    context.verify_flags = _FLAGS
    context.hostname_checks_common_name = False
    return context


def of_receivers(authorities: str | None) -> ssl.SSLContext:
    """Return a context that trusts these roots (PEM) alone, or the public ones."""
    return _of_receivers(None if authorities else certifi.where(), authorities)


# Loading the roots takes tens of milliseconds, so clients of the same roots share a context.
@functools.lru_cache(maxsize=4)
def _of_receivers(ca_file: str | None, pem: str | None) -> ssl.SSLContext:
    return verifying(ca_file, pem)
