"""The evidence pack and `verify.py`.

`packs` has what they are made of, `authorities` make timestamps, `stamped_packs` bear them, and
`policies` name witnesses.
"""
