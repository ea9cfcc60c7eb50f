"""The console: as HTTP sees it, and in a real browser."""
