"""JSON shapes: values (`fields`, `span_fields`, over `described`), and objects (`schema`)."""
