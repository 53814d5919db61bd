"""Lookup of private operators of torch, which a release of torch may lack.

The caller needs a fallback for a torch without the operator; each process logs one warning per missing operator.
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
    """The operator `torch.{path}`; None, after a warning, if torch lacks it.

    `without`: a clause for the warning that names the effect, such as a slower operation.
    """
    import torch

    try:
        return attrgetter(path)(torch)
    except AttributeError:
        logger.warning("torch %s has no torch.%s: %s", torch.__version__, path, without)
        return None
