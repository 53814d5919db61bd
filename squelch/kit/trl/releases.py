"""The releases of TRL on which the override of one of its methods was tried. Imports no TRL."""

from __future__ import annotations

import inspect

PROVEN = ("1.16",)
"""Releases, without the last number."""
HOOK, PARAMETERS = "_generate_and_score_completions", ["self", "inputs"]


def require_proven(version: str, trainer: type) -> None:
    """Raises ImportError unless the trainer is of a release on which the override was tried."""
    hook = getattr(trainer, HOOK, None)
    parameters = list(inspect.signature(hook).parameters) if hook is not None else None
    if version.rpartition(".")[0] in PROVEN and parameters == PARAMETERS:
        return
    takes = f"its {HOOK} takes {parameters}" if parameters is not None else f"it has no {HOOK}"
    raise ImportError(
        f"squelch.trl.SquelchGRPOTrainer was tried on TRL {', '.join(PROVEN)}; this is TRL {version}, and {takes}. "
        f"Install trl=={PROVEN[-1]}.*, or observe without filter: squelch.trl.Observer overrides nothing"
    )
