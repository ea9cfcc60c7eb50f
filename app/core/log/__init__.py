"""The transparency log as a service: what is committed to, published so that nobody can unsay it.

`sequencer.py` narrates the order of commits; the other modules are its steps, and what is read out.
"""
