"""`verify.py` on evidence packs; `checking` makes and checks them."""
