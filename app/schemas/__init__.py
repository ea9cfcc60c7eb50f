"""JSON shapes: `fields`, `span_fields` are types of values, `described` their base; `schema` objects."""
