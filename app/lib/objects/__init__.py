"""Stores of objects: `stores` has a folder of this host, `bucket` one of S3's protocol."""
