"""Compilation of the functions that a GPU runs as one kernel instead of many."""

import inspect
import os
from collections.abc import Callable
from typing import Any

import torch

from squelch.kit.process import compilations
from squelch.kit.process.compile_cache import own_compile_cache

VARIANTS = 64
"""Compiled forms of one function that torch may keep. FlexAttention has one for each combination of one token, one tile
or several, with or without a window, with or without gradients, and perhaps of sizes that are multiples of a tile.
Beyond torch's own limit of 8 it would compute the dense form instead, which holds the scores of all pairs of tokens."""


def watch_compilations() -> None:
    """Notes this process's compilations from now on, for its progress. May be called again."""
    from torch._dynamo.callback import callback_handler  # here, because the import takes a second

    if _began not in callback_handler.start_callbacks:
        callback_handler.register_start_callback(_began)
        callback_handler.register_end_callback(_ended)


def _began(_: Any) -> None:
    compilations.note(True)


def _ended(_: Any) -> None:
    compilations.note(False)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, compiled at its first call for sizes that may differ from call to call."""
    os.environ.update(own_compile_cache())
    watch_compilations()
    compile_: Any = torch.compile  # its annotations leave the limit out
    if "recompile_limit" in inspect.signature(compile_).parameters:
        return compile_(function, dynamic=True, recompile_limit=VARIANTS)
    # Such a torch has one limit for all functions and threads. Newer ones have it by thread, and autograd has its own.
    from torch._dynamo import config as compiler  # here, because the import takes a second

    compiler.recompile_limit = max(compiler.recompile_limit, VARIANTS)
    return compile_(function, dynamic=True)
