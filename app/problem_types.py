"""What a problem type (RFC 9457) is: its class registers its status, title and advice.

`app/errors.py` has all of them.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class ProblemType:
    """A problem type: its status, its title, the advice on its page, and headers of its answers."""

    status: int
    title: str
    advice: str
    headers: Mapping[str, str]


PROBLEM_TYPES: dict[str, ProblemType] = {}
"""All problem types by slug; the first of a status stands for what has no other type."""


class ServiceError(Exception):
    """The base class of errors that callers see.

    `members` are added to the problem details, `headers` to the answer.
    """

    slug: ClassVar[str]

    def __init_subclass__(
        cls,
        slug: str | None = None,
        status: int | None = None,
        headers: Mapping[str, str] = _NOTHING,
    ) -> None:
        if slug is not None:
            status = status or PROBLEM_TYPES[cls.slug].status
            cls.slug = slug
            title, _, advice = inspect.cleandoc(cls.__doc__ or "").partition("\n\n")
            PROBLEM_TYPES[slug] = ProblemType(
                status, title.removesuffix("."), " ".join(advice.split()), headers
            )

    def __init__(
        self,
        detail: str,
        members: Mapping[str, Any] = _NOTHING,
        headers: Mapping[str, str] = _NOTHING,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.members = members
        self.headers = {**PROBLEM_TYPES[self.slug].headers, **headers}


@dataclass(frozen=True)
class FieldError:
    """A refused field: where (RFC 6901 pointer into the body) and why.

    `line` and `column`, both from 1, are the place in the text of an expression.
    """

    pointer: str
    detail: str
    line: int | None = None
    column: int | None = None

    def members(self) -> dict[str, str | int]:
        """Return its members in an answer."""
        return {name: value for name, value in vars(self).items() if value is not None}
