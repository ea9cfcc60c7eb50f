"""What is proven: `audit` chains, the `log`, and `anchors` between them."""
