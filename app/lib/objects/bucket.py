"""A bucket of S3, or of any store that speaks its protocol."""

from collections.abc import Iterator, Sequence
from datetime import timedelta

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from app.lib.objects.stores import AT_ONCE, Away

_CONNECT = timedelta(seconds=2)


class Bucket:
    """Objects below a prefix of a bucket; verbs as `stores.ObjectStore` has them."""

    def __init__(self, url: str, timeout: timedelta) -> None:
        self._store = S3Store.from_url(
            url,
            client_options={
                "timeout": timeout,
                "connect_timeout": _CONNECT,
                # The endpoint's own scheme decides.
                "allow_http": True,
            },
            retry_config={"max_retries": 1, "retry_timeout": timeout},
        )

    def put(self, name: str, content: bytes) -> None:
        """Store an object, in place of one of this name."""
        try:
            obstore.put(self._store, name, content, use_multipart=False)
        except (BaseError, OSError) as error:
            raise _away(error) from error

    def get(self, name: str) -> bytes | None:
        """Return an object, or None without one."""
        try:
            return bytes(obstore.get(self._store, name).bytes())
        except FileNotFoundError:
            return None
        except (BaseError, OSError) as error:
            raise _away(error) from error

    def has(self, name: str) -> bool:
        """Say whether there is an object of this name."""
        try:
            obstore.head(self._store, name)
        except FileNotFoundError:
            return False
        except (BaseError, OSError) as error:
            raise _away(error) from error
        return True

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects."""
        try:
            obstore.delete(self._store, list(names))
        except FileNotFoundError:
            return
        except (BaseError, OSError) as error:
            raise _away(error) from error

    def names(self, after: str) -> Iterator[str]:
        """Yield the names behind this one, in their order."""
        try:
            for batch in obstore.list(self._store, offset=after or None, chunk_size=AT_ONCE):
                for each in batch:
                    yield each["path"]
        except (BaseError, OSError) as error:
            raise _away(error) from error


def _away(error: Exception) -> Away:
    # The library's text names the request; its first line says what happened.
    return Away(f"The bucket does not answer as it should ({type(error).__name__}).")
