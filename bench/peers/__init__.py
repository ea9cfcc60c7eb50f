"""What the service is compared with: each the way a Python team would write it, well tuned."""
