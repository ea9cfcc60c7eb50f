"""Bytes in an object store: the way in, all ways out, expiry, moving, sweeping, and its loss.

`worlds` serves a tenant with one. `test_real_s3` does it all with a server of S3's protocol.
"""
