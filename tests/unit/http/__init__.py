"""The gateway, limits and fields."""
