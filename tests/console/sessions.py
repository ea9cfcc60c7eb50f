"""Sessions of the console, and making them old."""

PAGE = "/console/deliveries"
