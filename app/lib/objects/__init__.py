"""Stores of objects: `opening` opens one by its URL, `stores` has them.

One is a bucket of S3's kind, the other a folder of this host.
"""
