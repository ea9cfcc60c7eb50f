"""What operators watch: the state behind `/readyz`, the figures of `/metrics`.

`watched` is a tenant of which gauges and figures tell.
"""
