"""The blocks of code in README and docs, which tests run as they are written."""

import re

from dev.stack import ROOT

_STAND_INS = ROOT / "tests" / "support" / "programs" / "stand_ins"


def block(page: str, language: str, containing: str) -> str:
    """Return the one block of a page in this language that contains these words."""
    text = (ROOT / page).read_text("utf-8")
    (found,) = [each for each in blocks(text, language) if containing in each]
    return found


def with_stand_in(program: str, framework: str) -> str:
    """Return a program behind what it leaves to its reader: a model, a tool, a graph."""
    return (_STAND_INS / f"{framework}.py").read_text("utf-8") + program


def blocks(text: str, language: str) -> list[str]:
    """Return the blocks of Markdown in this language, in their order."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
