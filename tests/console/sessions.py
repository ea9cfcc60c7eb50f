"""Sessions of the console, and making them old."""

from collections.abc import Callable

from tests.support.callers.api import Api

ApiOf = Callable[..., Api]
PAGE = "/console/deliveries"
