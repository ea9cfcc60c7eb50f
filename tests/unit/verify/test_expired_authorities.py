"""A timestamp authority whose certificate is not valid any more, or not yet."""

from datetime import UTC, datetime, timedelta

import pytest

from app.lib.crypto import timestamps
from app.lib.crypto.timestamps import NotStamped
from tests.unit.verify.authorities import authority

NOW = datetime(2026, 2, 1, tzinfo=UTC)
DAY = timedelta(days=1)
NAMED = r"the authority's certificate \(CN=signer\)"


@pytest.mark.parametrize(
    ("begin", "end", "why"),
    [
        (NOW - 9 * DAY, NOW - DAY, f"{NAMED} had expired: it was valid until 2026-01-31"),
        (NOW + DAY, NOW + 9 * DAY, f"{NAMED} was not valid yet: it is from 2026-02-02T"),
    ],
)
def test_it_is_named_in_words(begin: datetime, end: datetime, why: str) -> None:
    by = authority(begin=begin, end=end)
    with pytest.raises(NotStamped, match=why):
        timestamps.verify(by.stamp(b"checkpoint", NOW), b"checkpoint", by.above)


def test_a_certificate_is_held_to_the_moment_of_the_timestamp() -> None:
    by = authority(begin=NOW - DAY, end=NOW + DAY)
    time = timestamps.verify(by.stamp(b"checkpoint", NOW), b"checkpoint", by.above)
    assert timestamps.moment(time) == NOW
