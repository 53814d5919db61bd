"""The ways in which new weights reach rollout workers: the values of `rollout.weight_transfer`, one row each.

A new way is a row of `WAYS`, and the class that the row names. Imports neither Ray, torch nor vLLM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

BROADCAST = "broadcast"
"""What a worker reports of weights that came in a weight group, whichever way connects it."""


@dataclass(frozen=True)
class Way:
    """A way. Names of code are `module:attribute`, imported where the way is taken."""

    name: str
    words: str
    """Where the weights travel; follows "new weights reach rollout workers"."""
    terms: str
    """What it needs, in a clause whose subject is the way."""
    fits: Mapping[str, Callable[[float], bool]] = field(default_factory=dict)
    """By key, whether a setting of the run has a value with which the way is possible."""
    mend: str = ""
    """What to do about a setting that does not fit, before the advice to leave the choice to `auto`."""
    copy: str = ""
    """The class of `learner.published_copy.Copy` in which rank 0 keeps a version that workers read where it lies."""
    group: str = ""
    """The class that connects the members of a weight group: of its store, the member's rank, the size, the time-out"""
    otherwise: str = "object_store"
    """The way that is taken where this one fails."""
    on_gpu: bool = False
    """Whether the copy takes memory of the learner's GPU."""
    exact: bool = False
    """Whether the run ends where this way is set by name and cannot be taken."""
    automatic: bool = True
    """Whether `auto` may choose it."""
    bytes_per_s: float = 5e8
    """What `squelch plan` counts with: that of the object store, measured on an H100, into which a broadcast puts the
    version first, too."""

    def unfit(self, config: Any) -> str:
        """The settings of a run's configuration that rule the way out, as `key=value`; empty if it is possible."""
        values = ((key, attrgetter(key)(config)) for key in self.fits)
        return ", ".join(f"{key}={value:g}" for key, value in values if not self.fits[key](value))


_ROWS = (
    Way("object_store", "through Ray's object store", "needs nothing"),
    Way(
        "shared_memory",
        "in memory on the learner's host, elsewhere through Ray's object store",
        "needs the learner's user, host and container",
        copy="squelch.learner.published_copy:HostCopy",
        bytes_per_s=1e9,  # new pages of host memory fill at 1.2e9 to 1.7e9, and readers copy them
    ),
    Way(
        "ipc",
        "in the learner's memory on their GPU, elsewhere through Ray's object store",
        "needs learner and rollout workers on one GPU, each with a share",
        # Ray packs shares onto a GPU, so that only a worker knows whether its GPU is the learner's.
        dict.fromkeys(("learner.num_gpus", "rollout.num_gpus"), lambda gpus: 0 < gpus < 1)
        | {"rollout.tensor_parallel_size": lambda size: size == 1},
        "give shares between 0 and 1, or ",
        copy="squelch.learner.published_copy:GpuCopy",
        otherwise="shared_memory",
        on_gpu=True,
        exact=True,
        bytes_per_s=5e10,  # a copy on one GPU: assumed
    ),
    Way(
        "nccl",
        "broadcast by NCCL",
        "needs a whole GPU for each learner rank and rollout worker",
        dict.fromkeys(("learner.num_gpus", "rollout.num_gpus"), lambda gpus: gpus >= 1),  # two on one, it refuses
        "raise it, or ",
        group="squelch.actors.weight_group:nccl",
    ),
    Way(
        "gloo",
        "broadcast by Gloo, between CPUs",
        "connects CPUs",
        {"rollout.num_gpus": lambda gpus: gpus == 0},
        group="torch.distributed:ProcessGroupGloo",
        automatic=False,
    ),
)
WAYS: Mapping[str, Way] = {way.name: way for way in _ROWS}
AUTOMATIC = [way for way in reversed(_ROWS) if way.automatic]
"""Of these, `auto` is the first that is possible."""
MEANING = (
    "How new weights reach the workers. "
    + " ".join(f"`{way.name}`: {way.words}; {way.terms}{', or the run ends' * way.exact}." for way in _ROWS)
    + f" `auto`: the first of {', '.join(f'`{way.name}`' for way in AUTOMATIC)} that is possible."
)
