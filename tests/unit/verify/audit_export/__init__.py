"""`verify.py audit` on exports of an audit chain; `exports` makes them."""
