"""JSON shapes: `fields` and `span_fields` are types of values over `described`; `schema` objects."""
