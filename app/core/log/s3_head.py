"""A head in an object of S3, or of any store that honours If-Match and If-None-Match.

Credentials, region and endpoint are obstore's own settings (`AWS_ACCESS_KEY_ID`, `AWS_REGION`,
`AWS_ENDPOINT_URL` and so on).
"""

from datetime import timedelta

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError, PreconditionError
from obstore.store import S3Store

from app.errors import LogHeadUnavailable

_TIMEOUT = timedelta(seconds=10)


class S3Head:
    """The object `key` of a bucket."""

    def __init__(self, bucket: str, key: str) -> None:
        self._key = key
        self._store = S3Store(
            bucket,
            client_options={
                "timeout": _TIMEOUT,
                "connect_timeout": timedelta(seconds=3),
                # The endpoint's own scheme decides.
                "allow_http": True,
            },
            retry_config={"max_retries": 2, "retry_timeout": _TIMEOUT},
        )

    def read(self) -> bytes | None:
        """Return the object, or None when there is none."""
        found = self._found()
        return None if found is None else found[0]

    def swap(self, old: bytes | None, new: bytes) -> bool:
        """Put the object on the condition that it is still the one read a moment ago."""
        found = self._found()
        content, tag = (None, None) if found is None else found
        if content == new:
            return True
        if content != old:
            return False
        try:
            if tag is None:
                obstore.put(self._store, self._key, new, mode="create")
            else:
                obstore.put(self._store, self._key, new, mode={"e_tag": tag})
        except (PreconditionError, AlreadyExistsError):
            return False
        except BaseError as error:
            raise _unavailable() from error
        return True

    def _found(self) -> tuple[bytes, str] | None:
        try:
            answer = obstore.get(self._store, self._key)
            content, tag = bytes(answer.bytes()), answer.meta["e_tag"]
        except (NotFoundError, FileNotFoundError):
            return None
        except BaseError as error:
            raise _unavailable() from error
        if tag is None:
            raise LogHeadUnavailable("This object store gives no ETag, without which it cannot do.")
        return content, tag


def _unavailable() -> LogHeadUnavailable:
    return LogHeadUnavailable("The object store with the log's head does not answer as it should.")
