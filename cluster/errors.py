"""Errors that a user can correct: the command line prints them as one paragraph and exits with code 2."""


class UserError(Exception):
    """Bad input. The message names the key, file or actor at fault and says what would be right."""
