"""JSON shapes: `fields` are the types of values, `described` their base; `schema` has objects."""
