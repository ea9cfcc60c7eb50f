"""The verbs of the product: each does one thing with a given session and never commits."""
