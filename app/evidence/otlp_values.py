"""JSON values as OTLP's `AnyValue`, in the JSON form of the protocol.

The protobuf JSON mapping with OTLP's exceptions (https://opentelemetry.io/docs/specs/otlp/): 64-bit
integers are decimal strings, what is empty is left out, and so null is a value without a kind.
"""

from collections.abc import Mapping

from app.lib import canonical_json
from app.lib.canonical_json import JSON

MAX_LEVELS = 16
"""How deep arrays and objects nest before the rest is written as the text of its JSON.

An object costs three nested messages a level, and protobuf's readers refuse the hundredth.
"""

_UNNAMED = "record.unnamed"
_MAX_FIXED64 = 2**64 - 1


def any_value(value: JSON, levels: int = MAX_LEVELS) -> dict[str, object]:
    """Return the AnyValue of a JSON value: integers `intValue`, other numbers `doubleValue`.

    Values nested deeper than `levels` become a `stringValue` that holds canonical JSON.
    """
    if value is None:
        return {}
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if levels == 0:
        return {"stringValue": canonical_json.dumps(value).decode("utf-8")}
    if isinstance(value, dict):
        return {"kvlistValue": without_empty({"values": key_values(value, levels - 1)})}
    values = [any_value(item, levels - 1) for item in value]
    return {"arrayValue": without_empty({"values": values})}


def attributes(values: Mapping[str, JSON]) -> list[dict[str, object]]:
    """Return the attributes of a message, in their order; each has a name, as OTLP asks for."""
    return key_values({name or _UNNAMED: value for name, value in values.items()})


def key_values(values: Mapping[str, JSON], levels: int = MAX_LEVELS) -> list[dict[str, object]]:
    """Return the KeyValue list of an object, in its order."""
    return [
        without_empty({"key": name, "value": any_value(value, levels)})
        for name, value in values.items()
    ]


def unix_nano(moment: int) -> str:
    """Write nanoseconds since 1970 as a fixed64.

    Before 1970 and after 2554 there is none: the empty text, to be left out, which OTLP reads as
    unknown.
    """
    return str(moment) if 0 < moment <= _MAX_FIXED64 else ""


def without_empty(message: Mapping[str, object]) -> dict[str, object]:
    """Leave out the fields that hold what an absent one means: an empty text, list or message."""
    return {name: value for name, value in message.items() if value not in ("", [], {}, 0)}
