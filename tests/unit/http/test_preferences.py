"""`Prefer`: how long a client waits."""

import pytest
from flask import Flask

from app.api.http.admission import Patience, patience

DEFAULT = Patience(10.0)


def read(header: str) -> Patience:
    with Flask(__name__).test_request_context(headers={"Prefer": header}):
        return patience(10.0)


@pytest.mark.parametrize(
    ("header", "read_as"),
    [
        ("wait=3", Patience(3, "wait=3")),
        ('wait = "3"', Patience(3, "wait=3")),
        ("wait= 3 \t;x=y", Patience(3, "wait=3")),
        ("foo; bar, Wait=3", Patience(3, "wait=3")),
        ("respond-async ", Patience(0, "respond-async")),
        ('wait="3', Patience(3, "wait=3")),
        ("wait=3 4", DEFAULT),
        ("wait 3", DEFAULT),
        ("", DEFAULT),
    ],
)
def test_a_preference_is_a_name_with_or_without_a_value(header: str, read_as: Patience) -> None:
    assert read(header) == read_as
