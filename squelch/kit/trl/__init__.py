"""The diagnosis and the filter inside TRL's GRPOTrainer, live (docs/guide/use-with-other-trainers.md#trl).

    Observer             MI, D and the regime of the live model every k steps; a reward function and a callback
    SquelchGRPOTrainer   the same from the ids and masks of a batch, and the filter; a subclass of GRPOTrainer
    SquelchMixin         the same for a trainer that is a subclass already
    GroupFilter          the filter's settings there
    recipe               a recipe of Squelch from a trainer that is ready to train

    GRPOTrainer: sample ── rewards ── advantages ── batch ─────────────▶ loss ── log
                              │                       │                           │
                              ▼                       ▼                           ▼
                          Observer ◀─exact ids── SquelchMixin: zero masks      Observer.on_log
                              │                                                   │
                              ├── log_metric ──▶ TRL's logs                       │
                              └── exported.Endpoint ──▶ /metrics ◀────────────────┘

Contract:

- Observing changes no parameter, optimizer state, random state or gradient of a run. It happens after sampling and
  before the update, on the weights that sampled, in the main process; the other ranks wait at TRL's next collective.
  Rows of all ranks are gathered first.
- Observing ends no training: what cannot be scored is said once and logged (`observer`).
- As a reward function the observer returns None for every row, so a row that the user's functions left out stays out.
- A dropped group gets a zero mask: loss, KL and entropy leave it out. Shapes stay. Every rank decides on the rewards of
  all ranks, so all decide the same.
- Generation is not touched. Evaluation is neither observed nor filtered.
- FSDP, DeepSpeed ZeRO-3 and trainers that give reward functions no samples are refused by name before training;
  `trainer` refuses a release of TRL that it was not tried on.
- TRL is imported by `trainer` alone, and only there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from squelch.kit.trl.groups import GroupFilter
    from squelch.kit.trl.imported import recipe
    from squelch.kit.trl.observer import Observer
    from squelch.kit.trl.trainer import SquelchGRPOTrainer, SquelchMixin

__all__ = ["GroupFilter", "Observer", "SquelchGRPOTrainer", "SquelchMixin", "recipe"]

_MODULES = {
    "GroupFilter": "squelch.kit.trl.groups",
    "Observer": "squelch.kit.trl.observer",
    "SquelchGRPOTrainer": "squelch.kit.trl.trainer",
    "SquelchMixin": "squelch.kit.trl.trainer",
    "recipe": "squelch.kit.trl.imported",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'squelch.trl' has no attribute {name!r}; public are {', '.join(__all__)}")
    from importlib import import_module

    return getattr(import_module(_MODULES[name]), name)
