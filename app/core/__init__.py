"""The verbs of the product: each module does one thing with a session it is given, and never commits."""
