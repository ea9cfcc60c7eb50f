"""Pure transforms of what a record holds: the bundle, PROV-JSON, OTLP."""
