"""A record as a bundle, PROV-JSON and OTLP; `records` has them as agents might send them."""
