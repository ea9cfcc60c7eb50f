"""Opening the store of objects that a URL names."""

from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.lib.objects.stores import Objects

# Of one request; S3 takes a thousand.
AT_ONCE = 1_000


class Away(Exception):
    """The store does not answer as it should; what was asked may be done or not."""


def opened(url: str, seconds: float) -> "Objects":
    """Return the store of `s3://bucket/prefix` or `file:///folder`; connects to nothing yet.

    A request to a bucket takes `seconds` at most. Credentials, region and endpoint are obstore's
    own settings (`AWS_ACCESS_KEY_ID`, `AWS_REGION`, `AWS_ENDPOINT_URL` and so on).
    """
    # The library takes memory, and most services do without.
    from app.lib.objects import stores  # noqa: PLC0415

    return stores.at(url, timedelta(seconds=seconds))
