"""The evidence pack and `verify.py`.

`packs` has what they are made of, `authorities` make timestamps, and `policies` name witnesses.
"""
