"""`make bench`: what the service does in a second, beside what bounds it on the same machine.

`parts` measure, with `traffic` or over `datasets`, some beside `peers`. `scale` says how much;
`lab` is the place, `service` what is measured, `processes` start it; `pace` times it, `figures`
writes it down, `results` keeps it.
"""
