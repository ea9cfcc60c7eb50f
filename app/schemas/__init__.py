"""JSON shapes: `fields`, `span_fields` are types of values; `schema` has objects of both ways."""
