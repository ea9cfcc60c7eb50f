"""The promise that recording never raises into the agent."""

from __future__ import annotations

from functools import wraps
from typing import Any, Callable, TypeVar, cast

_Method = TypeVar("_Method", bound=Callable[..., Any])


def guarded(returns: str | None = None) -> Callable[[_Method], _Method]:
    """Decorate a method: what it raises is counted and logged, and raised only if `strict`.

    Then it returns None, or itself where `returns` is `self`. Its object has `strict` and
    `recorder`.
    """

    def decorate(method: _Method) -> _Method:
        @wraps(method)
        def call(self: Any, *arguments: Any, **options: Any) -> Any:
            try:
                return method(self, *arguments, **options)
            except Exception as error:
                if self.strict:
                    raise
                self.recorder.note_dropped(error)
            return self if returns == "self" else None

        return cast(_Method, call)

    return decorate
