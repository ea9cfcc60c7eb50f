"""Running `verify.py` in this process, and telling what it said."""

import io
from contextlib import redirect_stdout
from dataclasses import dataclass

from app.evidence import verify


@dataclass(frozen=True)
class Answer:
    """An exit code, the verdict on each check by its name, and all that was printed."""

    code: int
    text: str

    @property
    def last(self) -> str:
        return self.text.splitlines()[-1]

    @property
    def verdicts(self) -> dict[str, str]:
        lines = [line for line in self.text.splitlines() if line[12:13] == " " and ": " in line]
        return {line[13:].partition(": ")[0]: line[:12].strip() for line in lines}

    def of(self, status: str) -> list[str]:
        """The checks with this verdict, in their order."""
        return [name for name, found in self.verdicts.items() if found == status]


def answer(*arguments: object) -> Answer:
    out = io.StringIO()
    with redirect_stdout(out):
        code = verify.main([str(each) for each in arguments])
    return Answer(code, out.getvalue())
