"""The console: as HTTP sees it, and in a real browser.

`screenshots` is no test: it pictures the pages of a running `make demo`.
"""
