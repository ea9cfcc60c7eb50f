"""The broker, on a Valkey that misbehaves; `working` runs a worker on it."""
