"""Words of strangers, made safe to look at.

What cannot be seen, or turns the order of other characters around, is shown by its number.
"""

import json
import re

# Control characters, marks and overrides of direction (the "trojan source" ones), byte-order marks
# and tags. What joins letters and emoji stays.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff"
    "\U000e0000-\U000e007f]"
)


def visible(text: str) -> str:
    r"""Write what cannot be seen, or misleads the eye, as JSON escapes it: `\u202e`."""
    return _HIDDEN.sub(lambda match: json.dumps(match[0])[1:-1], text)


def one_line(text: str, most: int) -> str:
    """Write a text visibly on one line of at most `most` characters; `…`: it was longer."""
    words = " ".join(text[: 4 * most].split())
    shown = visible(words)
    return shown if len(shown) <= most and len(text) <= 4 * most else f"{shown[: most - 1]}…"
