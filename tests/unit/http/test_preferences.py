"""`Prefer`, read in a time that grows with its length alone."""

import time

import pytest
from flask import Flask

from app.api.http.requests.headers import Patience, patience

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


@pytest.mark.parametrize("header", ['wait={0}""x', "wait{0}x", '{0}wait={0}"3{0}"{0}"', "{0};{0}"])
def test_white_space_costs_no_more_than_other_characters(header: str) -> None:
    began = time.process_time()
    assert read(header.format(" " * 1_000)) == DEFAULT
    # Less than a millisecond; tried in every way to share it out, eight seconds.
    assert time.process_time() - began < 2
