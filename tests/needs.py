"""What a test needs that a machine may lack."""

import os
from typing import NoReturn

import pytest


def skip_or_fail(reason: str) -> NoReturn:
    """Skips the test with the reason; where CI is set, it fails."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
