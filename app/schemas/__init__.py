"""JSON shapes: values (`fields`, `span_fields`), and objects (`schema`)."""
