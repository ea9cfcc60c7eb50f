"""A record as a bundle, PROV-JSON and OTLP."""
