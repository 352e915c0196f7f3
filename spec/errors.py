"""The one exception that means "the user can mend this"."""


class InputError(ValueError):
    """Bad input, told in one line: what was wrong, where, and what would be right.

    The command line prints the line and ends with exit code 2; it never shows a traceback for it.
    """


class Unavailable(Exception):
    """A backend that cannot run here; the text is the reason, such as a missing package or GPU."""
