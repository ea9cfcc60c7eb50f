"""Pure transforms of what records hold: the bundle, PROV-JSON, OTLP, `period_export`.

`bundle` is what is signed; `prov` writes PROV-JSON, `gen_ai` and `otlp` OTLP;
`statement` is what a session held; `streaming` and `times` serve them. `pack/` makes the evidence
pack, with `verify`, the `signing_certificates` of its keys, `timestamps` (RFC 3161) and the `page/`
for people in it.
"""
