"""Errors that a user can mend: the command line prints them as one paragraph and exits with code 2."""

import argparse


def natural(text: str) -> int:
    """A flag's value that is a whole number from 0 on; argparse names the flag when it is not."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on")
    return int(text)


class UserError(Exception):
    """Bad input. The message names the key, file or actor at fault and says what would be right."""
