"""Fingerprints of failures: attempts that failed the same way have the same number.

It hashes outcome, status and normalised error, without numbers, ids and addresses. Each failed
delivery stores its own, so groups of failures are found without reading attempts.
"""

import hashlib
import re

# Parts that differ between two failures of one cause, longest patterns first.
_DIFFERENT = (
    (re.compile(r"https?://[^\s'\"<>]+"), "<url>"),
    (re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE), "<id>"),
    (re.compile(r"\b[a-z]{3}_[0-9a-f]{32}\b"), "<id>"),
    (
        re.compile(r"(?<![\w:])(?=[0-9a-f:]*::|([0-9a-f]+:){7})[0-9a-f:]+", re.IGNORECASE),
        "<address>",
    ),
    (re.compile(r"\b\d{1,3}(\.\d{1,3}){3}\b"), "<address>"),
    (re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{12,}\b", re.IGNORECASE), "<id>"),
    (re.compile(r"\d+(\.\d+)?"), "<n>"),
)
# An error quotes at most a line of the receiver's; differences beyond this length are ignored.
_CHARACTERS = 300


def normalise(error: str | None) -> str | None:
    """Return an error's text without the parts that differ between attempts."""
    if error is None:
        return None
    text = " ".join(error.split())[:_CHARACTERS]
    for pattern, name in _DIFFERENT:
        text = pattern.sub(name, text)
    return text


def fingerprint(outcome: str, status_code: int | None, error: str | None) -> int:
    """Return the fingerprint of a failure: the same in every process and release, never 0."""
    text = f"{outcome}\n{status_code}\n{normalise(error)}"
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big", signed=True)
    return number or 1
