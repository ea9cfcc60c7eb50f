"""Parts of exports in an object store: a bucket of S3's kind, or a folder.

Credentials, region and endpoint are obstore's own settings (`AWS_ACCESS_KEY_ID`, `AWS_REGION`,
`AWS_ENDPOINT_URL` and so on).
"""

from collections.abc import Sequence
from datetime import timedelta

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, S3Store

from app.errors import Unavailable

_TIMEOUT = timedelta(seconds=30)


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

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects; those that are not there are no error."""
        # S3's own request for many says nothing of those; a folder has none.
        wanted = [list(names)] if isinstance(self._store, S3Store) else names
        for each in wanted:
            try:
                obstore.delete(self._store, each)
            except FileNotFoundError:
                continue
            except BaseError as error:
                raise _away() from error


def _away() -> Unavailable:
    return Unavailable("The object store of exports (EXPORTS_URL) does not answer as it should.")
