"""What a step on one rank does once, however many micro-batches it has: copies of the model, and waits for the device.

Both are counted on CPU from the operators that a step runs. On a GPU, an operator that hands a number to Python, or
whose result's size depends on the data, waits for all work before it.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from squelch.learner.trainer import Trainer
from tests.learner.models import make_config, make_groups

pytestmark = pytest.mark.usefixtures("alone")
WAITS = ("aten._local_scalar_dense", "aten.nonzero", "aten.masked_select", "aten.equal")
EVERYTHING = {"kl": {"coefficient": 0.1}, "max_mismatch": 9.0, "anchor": "recomputed"}


class Counted(TorchDispatchMode):
    """Counts operators that wait for a device, and the copies of tensors of `shape`."""

    def __init__(self, shape: torch.Size) -> None:
        super().__init__()
        self.shape, self.waits, self.copies = shape, Counter[str](), 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = str(func)
        by_mask = name == "aten.index.Tensor" and any(i is not None and i.dtype == torch.bool for i in args[1])
        if name.startswith(WAITS) or by_mask:
            self.waits[name] += 1
        copied = isinstance(out, Tensor) and out.shape in (self.shape, (self.shape.numel(),))
        self.copies += copied and name in ("aten.copy_.default", "aten._to_copy.default", "aten.div.Tensor")
        return out


def counted(folder: Path, budget: int, **changes: Any) -> tuple[Counted, int]:
    """The counts of the second step, and its micro-batches. A matrix inside a layer stands for all parameters, because
    only FSDP copies it."""
    trainer = Trainer(folder, make_config(minibatches=1, token_budget=budget, **changes))
    trainer.train_step(0, make_groups())
    inner: Any = trainer.policy.model.base_model.layers[0].mlp.up_proj
    before = trainer.marks.seen().marks
    with Counted(inner.weight.shape) as found:
        assert trainer.train_step(1, make_groups()).updated
    return found, trainer.marks.seen().marks - before


@pytest.mark.parametrize("changes", [{}, {"dtype": "bfloat16"}, {"min_num_params": 0}], ids=str)
def test_one_rank_copies_the_model_once_an_optimizer_step_and_not_once_a_micro_batch(
    model_dir: Path, changes: dict
) -> None:
    one, several = (counted(model_dir, budget, kernels="plain", **changes) for budget in (1000, 64))
    assert one[1] == 1 and several[1] > 4
    assert one[0].copies > 0
    in_float32 = 4 if "dtype" in changes else 0  # sums of gradients of two layers' two matrices of this shape
    assert several[0].copies <= one[0].copies + in_float32


@pytest.mark.parametrize(
    "changes", [{}, {"objective": EVERYTHING}, {"algorithm": "gspo"}, {"algorithm": "ppo"}], ids=str
)
def test_no_micro_batch_waits_for_the_device(model_dir: Path, changes: dict) -> None:
    one, several = (counted(model_dir, budget, kernels="plain", **changes) for budget in (1000, 64))
    assert several[1] > 4 * one[1]
    assert several[0].waits == one[0].waits
