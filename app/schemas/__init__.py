"""JSON shapes: `fields`, `span_fields` are types of values over `described`; `schema` objects."""
