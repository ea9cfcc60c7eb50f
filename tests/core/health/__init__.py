"""What operators watch: the state behind `/readyz`, the figures of `/metrics`."""
