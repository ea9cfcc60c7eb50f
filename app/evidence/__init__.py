"""Pure transforms of what a record holds: the bundle, PROV-JSON, OTLP.

`bundle` is what is signed; `data_flow`, `prov` and `prov_terms` write PROV-JSON; `gen_ai`, `otlp`
and `otlp_values` write OTLP; `streaming` and `times` serve them. `pack/` makes the evidence pack,
`verify` goes into it.
"""
