"""The one way in which `make up` says that it cannot go on."""


class CannotStart(Exception):
    """Something is in the way; the text is one line that names it and the fix."""
