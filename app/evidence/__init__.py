"""Pure transforms of what a record holds: the bundle, PROV-JSON, OTLP.

`bundle` is what is signed; `data_flow` and `prov` write PROV-JSON, `gen_ai` and `otlp` OTLP;
`streaming` and `times` serve them. `pack/` makes the evidence pack, with `verify` and the `page/`
for people in it.
"""
