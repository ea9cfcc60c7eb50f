"""Fields of what was a span in OpenTelemetry: ids in hex, and times to the nanosecond."""

import re
from contextlib import suppress
from datetime import datetime
from typing import Any

from marshmallow import ValidationError

from app.clock import rfc3339
from app.schemas.fields import Strict, Time


class PreciseTime(Time):
    """The same to the nanosecond, as RFC 3339 in UTC: with six decimals, or nine if they say more.

    For times that are kept as text.
    """

    _PLAIN = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,6}))?Z", re.ASCII)

    def _deserialize(self, value: Any, *_: Any, **__: Any) -> str:  # type: ignore[override]  # a text, where the base has a moment
        plain = self._PLAIN.fullmatch(value) if type(value) is str else None
        if plain is not None:
            # In UTC and to the microsecond, as nearly all are: a third of the time.
            with suppress(ValueError):
                return f"{datetime.fromisoformat(plain[1]).isoformat()}.{plain[2] or '':0<6}Z"
        written = rfc3339(super()._deserialize(value))
        match = self._FORM.fullmatch(value)
        nanoseconds = (match[2] if match else None) or ""
        return f"{written[:-1]}{nanoseconds:0<3}Z" if nanoseconds.strip("0") else written


class HexId(Strict):
    """The id of a span (16 digits) or of a trace (32) as OpenTelemetry writes it."""

    def __init__(self, digits: int, **options: Any) -> None:
        super().__init__(**options)
        self._form = re.compile(f"(?!0+$)[0-9a-f]{{{digits}}}", re.ASCII)
        self._wrong = f"Send {digits} digits of 0-9, a-f, not all of them 0."
        self.json_schema = {"type": "string", "pattern": f"^{self._form.pattern}$"}

    def _deserialize(self, value: Any, *_: Any, **__: Any) -> str:
        if not isinstance(value, str) or self._form.fullmatch(value) is None:
            raise ValidationError(self._wrong)
        return value
