"""Who a request is taken for by the event loop, before the application has seen it."""

import pytest

from app.asgi import caller
from app.settings import Settings
from tests.support.secrets import MASTER_KEYS_SETTING

NEEDED = {
    "DATABASE_URL": "postgresql://records.test/records",
    "MASTER_KEYS": MASTER_KEYS_SETTING,
    "BASE_URL": "https://records.test",
}
SETTINGS = Settings.from_environ({**NEEDED, "TRUSTED_PROXIES": "10.0.0.0/8"})


@pytest.mark.parametrize(
    ("peer", "headers", "expected"),
    [
        ("203.0.113.5", [], "203.0.113.5"),
        ("203.0.113.5", [(b"x-forwarded-for", b"198.51.100.7")], "203.0.113.5"),
        ("10.0.0.1", [(b"x-forwarded-for", b"198.51.100.7, 203.0.113.9")], "203.0.113.9"),
        (
            "10.0.0.1",
            [(b"x-forwarded-for", b"203.0.113.9"), (b"x-forwarded-for", b"10.0.0.2")],
            "203.0.113.9",
        ),
        ("10.0.0.1", [(b"x_forwarded_for", b"203.0.113.9")], "10.0.0.1"),
        ("203.0.113.5", [(b"x-api-key", b"svc_a")], b"svc_a"),
        ("203.0.113.5", [(b"x_api_key", b"svc_a")], "203.0.113.5"),
    ],
    ids=[
        "the peer",
        "a field of nobody's",
        "behind a proxy",
        "a line of each of two proxies",
        "an underscore",
        "a key",
        "a key with underscores",
    ],
)
def test_a_caller_is_a_key_or_an_address(
    peer: str, headers: list[tuple[bytes, bytes]], expected: object
) -> None:
    assert caller(SETTINGS, {"client": (peer, 4711), "headers": headers}) == expected
