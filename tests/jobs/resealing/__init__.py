"""Rotating the master keys: what one key sealed is sealed anew under the next.

`sites` are services with any keys, `sealed` fills one and uses all of it; a test kills
`reseal_process`.
"""
