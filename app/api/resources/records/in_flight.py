"""Large responses in flight: a bound on their bytes in a process, and a share for each reader."""

from collections.abc import Iterator
from contextlib import contextmanager

from app.api.http.requests import large_bodies
from app.api.http.services import services
from app.api.resources.records.bundle_access import admission
from app.lib.fair_shares import NoShare

_FULL = (
    "Too many large answers of this tenant, or of all, are on their way: read those that you have "
    "begun, and try again in a moment."
)


@contextmanager
def share(size: int) -> Iterator[None]:
    """Reserve memory for `size` bytes of a response; raises `Busy`.

    It counts against the share of the reader (API key, share link, or the public record itself),
    and of the record's tenant.
    """
    if size <= large_bodies.LARGE:
        yield
        return
    here = services()
    found = admission()
    reader = found.link_id or (found.caller.key_id if found.caller else found.record_id)
    try:
        here.answers.take(reader, size, found.tenant_id)
    except NoShare:
        raise large_bodies.refused("answer_memory", _FULL) from None
    try:
        yield
    finally:
        here.answers.give_back(reader, size, found.tenant_id)
