"""JSON shapes: `fields` are the types of values, `described` their base, `schema` the objects."""
