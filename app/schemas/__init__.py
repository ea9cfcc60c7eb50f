"""JSON shapes: values (`fields`, `span_fields`, `party_fields`), and objects (`schema`)."""
