"""The plain definition of the output head, in PyTorch's public operators.

The fast kernel computes the same results. `learner.kernels: plain` runs this definition, with the model's own linear
layers and gated blocks, and with the definition of attention over packed rows (`kit.packed.plain`). It is slower and
needs more memory, because it computes all logits at once. The same tests cover both forms.
"""

from torch import Tensor
from torch.nn.functional import linear


def log_probabilities(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, temperature: float, entropy_gradient: bool
) -> tuple[Tensor, Tensor]:
    """The same as `learner.kernels.head.log_probabilities`, computed from all logits at once."""
    logits = linear(hidden.to(weight.dtype), weight, bias).float() / temperature
    log_p = logits.log_softmax(-1)
    entropies = -(log_p.exp() * log_p).sum(-1)
    chosen = log_p.gather(-1, targets[:, None]).squeeze(-1)
    return chosen, entropies if entropy_gradient else entropies.detach()
