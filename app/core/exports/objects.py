"""Parts of exports in an object store: a bucket of S3's kind, or a folder.

Credentials, region and endpoint are obstore's own settings (`AWS_ACCESS_KEY_ID`, `AWS_REGION`,
`AWS_ENDPOINT_URL` and so on).
"""

from datetime import timedelta

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, S3Store

from app.errors import Unavailable

_TIMEOUT = timedelta(seconds=30)
# Of one request; S3 takes a thousand.
_AT_ONCE = 500


class Bucket:
    """An object for each part; verbs as `parts.ObjectStore` has them."""

    def __init__(self, url: str) -> None:
        self._store: S3Store | LocalStore
        if url.startswith("s3:"):
            self._store = S3Store.from_url(
                url, client_options={"timeout": _TIMEOUT, "allow_http": True}
            )
        else:
            self._store = LocalStore.from_url(url, mkdir=True)

    def put(self, name: str, content: bytes) -> None:
        """Store an object, in place of one of this name."""
        try:
            obstore.put(self._store, name, content)
        except BaseError as error:
            raise _away() from error

    def get(self, name: str) -> bytes | None:
        """Return an object, or None without one."""
        try:
            return bytes(obstore.get(self._store, name).bytes())
        except FileNotFoundError:
            return None
        except BaseError as error:
            raise _away() from error

    def clear(self, prefix: str) -> None:
        """Delete every object below a prefix, also what a killed worker left there."""
        try:
            for batch in obstore.list(self._store, prefix, chunk_size=_AT_ONCE):
                obstore.delete(self._store, [each["path"] for each in batch])
        except FileNotFoundError:
            # In a folder another sweep was quicker; the next one looks again.
            return
        except BaseError as error:
            raise _away() from error


def _away() -> Unavailable:
    return Unavailable("The object store of exports (EXPORTS_URL) does not answer as it should.")
