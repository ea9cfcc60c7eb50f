"""Fingerprints of failures: alike what one cause brings about, apart what two do."""

import pytest

from app.core.delivery import retries


@pytest.mark.parametrize(
    ("error", "normal"),
    [
        (None, None),
        ("", ""),
        (
            "the time was up after 15 s, while resolving",
            "the time was up after <n> s, while resolving",
        ),
        ("refused: 10.0.0.7 is not public", "refused: <address> is not public"),
        ("refused: fd00::17 is not public", "refused: <address> is not public"),
        ("refused: [::1] is not public", "refused: [<address>] is not public"),
        ("request 3fa85f6457174562b3fc2c963f66afa6", "request <id>"),
        ("request 3FA85F64-5717-4562-B3FC-2C963F66AFA6", "request <id>"),
        (f"evt_{'0' * 32} was refused", "<id> was refused"),
        ("see https://a.example/x?y=1 for more", "see <url> for more"),
        ("two\n  lines", "two lines"),
        ("at 12:30:59 it was defaced", "at <n>:<n>:<n> it was defaced"),
        ("x" * 1000, "x" * 300),
    ],
)
def test_what_differs_between_attempts_is_taken_out(error: str | None, normal: str | None) -> None:
    assert retries.normalise(error) == normal


def test_a_fingerprint_is_that_of_outcome_status_and_normal_error() -> None:
    same = [
        retries.fingerprint("connect", None, f"could not connect to 10.0.0.{n}") for n in (1, 2)
    ]
    others = [
        retries.fingerprint("timeout", None, "could not connect to 10.0.0.1"),
        retries.fingerprint("connect", 500, "could not connect to 10.0.0.1"),
        retries.fingerprint("connect", None, "could not bind to 10.0.0.1"),
        retries.fingerprint("connect", None, None),
    ]
    assert len({*same, *others}) == 5
    assert all(-(2**63) <= each < 2**63 and each for each in (*same, *others))


def test_a_fingerprint_is_the_same_in_every_release() -> None:
    """It is stored: a changed one would tear each group in two."""
    assert retries.fingerprint("refused", 503, None) == 567784796792393014
