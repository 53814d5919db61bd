"""The two sets of kernels that the setting `learner.kernels` selects: fast kernels, and their plain definitions.

| part | fast | plain |
|---|---|---|
| attention over packed rows | blocks on CPU, FlexAttention on CUDA (`kit.packed`) | `kit.packed.plain` |
| linear layers, float32 on CPU | oneDNN (`linear`) | the model's own |
| gated feed-forward block, float32 on CPU | one function (`gated`) | the model's own |
| log-probability and entropy | tiles of logits (`head`), compiled on CUDA | `plain.log_probabilities` |

Both sets compute the same results up to rounding; the tests of each part run both.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from squelch.kit.packed import attention
from squelch.learner.kernels import head, plain
from squelch.learner.kernels.gated import use_gated_blocks
from squelch.learner.kernels.linear import use_fast_products


@dataclass(frozen=True)
class Kernels:
    """One set of kernels."""

    attention: str
    """Name of the registered attention function in transformers."""
    log_probabilities: Callable[[Tensor, Tensor, Tensor | None, Tensor, float, bool], tuple[Tensor, Tensor]]
    replace_layers: Callable[[nn.Module], None]
    """Replaces layers of the model by faster ones, in place."""


def _fast_layers(model: nn.Module) -> None:
    use_fast_products(model)
    use_gated_blocks(model)


def _own_layers(model: nn.Module) -> None:
    """Keeps the model's layers."""


KERNELS: dict[str, Kernels] = {
    "fast": Kernels(attention.NAME, head.log_probabilities, _fast_layers),
    "plain": Kernels(attention.PLAIN_NAME, plain.log_probabilities, _own_layers),
}
"""Sets of kernels by the value of `learner.kernels`."""
