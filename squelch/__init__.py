"""Squelch: the package. Its rooms are the folders beside it; links reach them, so that the wheel installs one name."""
