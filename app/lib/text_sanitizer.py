"""Words of strangers, made safe to look at.

What cannot be seen, or turns the order of other characters around, is shown by its number.
"""

import json
import re
import unicodedata

# Control characters, marks and overrides of direction (the "trojan source" ones), soft hyphens and
# word joiners, fillers, annotations, byte-order marks and tags. What joins letters and emoji stays.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u180e\u200b\u200e\u200f"
    "\u202a-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e007f]"
)
# No script stacks more on one letter; what is stacked higher lies over the lines around it.
_MARKS_AT_MOST = 4


def visible(text: str) -> str:
    r"""Write what cannot be seen, or misleads the eye, as JSON escapes it: `\u202e`."""
    return _HIDDEN.sub(lambda match: json.dumps(match[0])[1:-1], text)


def one_line(text: str, most: int) -> str:
    """Write a text visibly on one line of at most `most` characters; `…`: it was longer.

    Of the marks that combine with one letter four are kept.
    """
    words = _unstacked(" ".join(text[: 4 * most].split()))
    shown = visible(words)
    return shown if len(shown) <= most and len(text) <= 4 * most else f"{shown[: most - 1]}…"


def _unstacked(text: str) -> str:
    kept: list[str] = []
    marks = 0
    for character in text:
        marks = marks + 1 if unicodedata.category(character) in ("Mn", "Me") else 0
        if marks <= _MARKS_AT_MOST:
            kept.append(character)
    return "".join(kept)
