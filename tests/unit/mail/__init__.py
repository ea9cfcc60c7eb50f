"""Mail to a server; `letters` has the letter that is sent."""
