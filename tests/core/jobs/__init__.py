"""Durable jobs: claims, pace, loss and retention."""
