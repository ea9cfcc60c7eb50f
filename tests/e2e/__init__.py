"""Whole services, and faults done to them."""
