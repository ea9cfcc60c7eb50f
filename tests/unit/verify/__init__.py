"""The evidence pack and `verify.py`."""
