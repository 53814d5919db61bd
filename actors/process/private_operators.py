"""Private operators of torch, looked up by name: no release of torch promises them.

The caller has a plain form for a torch that lacks the operator; the lack is said once in each process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any

logger = logging.getLogger(__name__)


@cache
def private_operator(path: str, without: str) -> Callable[..., Any] | None:
    """The operator at `torch.{path}`; None, and a warning, in a torch that lacks it.

    `without`: a clause that says what is slower then, for the warning.
    """
    import torch

    try:
        return attrgetter(path)(torch)
    except AttributeError:
        logger.warning("torch %s has no torch.%s: %s", torch.__version__, path, without)
        return None
