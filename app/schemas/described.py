"""The base of all fields: what it says of itself, and how a good value is loaded quickly."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from marshmallow import fields, missing


class Described(fields.Field[Any]):
    """A field with a `description` and an `example` for the OpenAPI document."""

    default_error_messages = {  # noqa: RUF012  # marshmallow's own spelling
        "required": "This field is required.",
        "null": "null is not allowed here.",
    }

    def __init__(
        self,
        *arguments: Any,
        description: str | None = None,
        example: Any = None,
        metadata: Mapping[str, Any] = MappingProxyType({}),
        **options: Any,
    ) -> None:
        documented = {"description": description, "example": example}
        given = {name: value for name, value in documented.items() if value is not None}
        super().__init__(*arguments, metadata={**metadata, **given}, **options)

    @property
    def is_plain(self) -> bool:
        """Whether the field has no validators, functions or default beside its type."""
        more = self.validators or self.pre_load or self.post_load
        return not more and self.load_default is missing

    def load_plainly(self, value: Any) -> Any:
        """Return what `deserialize` does of a good value, faster; raises for any other."""
        if value is None:
            if self.allow_none:
                return None
            raise self.make_error("null")
        return self._load_plainly(value)

    def _load_plainly(self, value: Any) -> Any:
        return self._deserialize(value, None, None)
