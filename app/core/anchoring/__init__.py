"""Anchoring: what holds the audit chains, and the log they are anchored in, from outside.

The heads of chains go into the log (`heads.py`); the log's checkpoints are stamped by a timestamp
authority (`timestamping.py`) and cosigned by witnesses (`cosigning.py`); `evidence.py` chooses what
proves most, `incidents.py` says what does not happen, and since when, and `status.py` puts into
words what is really there.
"""
