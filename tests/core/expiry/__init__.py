"""Expiry: bundles go when their time is over, however often it is run or stopped."""
