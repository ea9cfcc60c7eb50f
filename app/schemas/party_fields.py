"""Fields that name anybody or anything by an id of any kind."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from uuid import UUID

from marshmallow import ValidationError

from app import ids
from app.schemas.fields import Strict, Text


class Party(Text):
    """The id of an object of any kind, or one of the `others`, which have none."""

    def __init__(self, others: tuple[str, ...] = (), pattern: str = "$^", **options: Any) -> None:
        super().__init__(200, **options)
        self._others = others
        self._pattern = re.compile(pattern)

    def _deserialize(self, value: Any, *arguments: Any, **options: Any) -> str:
        text = super()._deserialize(value, *arguments, **options)
        if ids.is_one(text) or text in self._others or self._pattern.match(text):
            return text
        raise ValidationError(
            "This is no id: send a prefix, _ and 32 digits of 0-9, a-f"
            + (f"; or one of {', '.join(self._others)}." if self._others else ".")
        )


class CallerId(Strict):
    """The id of a key, or of a person who signed in to the console; answered only."""

    json_schema: Mapping[str, Any] = MappingProxyType(ids.json_schema("key|usr"))

    def __init__(self, **options: Any) -> None:
        options.setdefault("example", "key_0192f0c1a2b37c4d8e5f60718293a4b5")
        super().__init__(**options)

    def _serialize(self, value: UUID | None, *_: Any, **__: Any) -> str | None:
        return None if value is None else ids.of_caller(value)
