"""JSON shapes: `fields` and `span_fields` are the types of values; `schema` has objects of requests and answers."""
