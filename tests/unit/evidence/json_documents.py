"""Arbitrary JSON documents, and reading them back."""

FRAGMENTS = [
    "[",
    "]",
    "{",
    "}",
    ":",
    ",",
    '"',
    '"a"',
    '"b"',
    '"a":',
    "1",
    "0",
    "-",
    ".5",
    "e9",
    "e999",
]
FRAGMENTS += [
    " ",
    "\n",
    "\\",
    "\\u",
    "\\ud800",
    "\\udc00",
    "null",
    "true",
    "NaN",
    "9" * 16,
    "é",
    "\x00",
]
