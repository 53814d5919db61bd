"""The output head at sampled positions: log-probability and exact entropy, without a (tokens, vocabulary) tensor.

Logits are computed for one tile of tokens and vocabulary at a time, in the forward and again in the backward pass. Only
their log-sum-exp and entropy are kept for the backward pass, two numbers per token. If all logits fit into one tile,
they are kept too, which saves the second product. A tile has a fixed number of logits. Its part of the vocabulary
shrinks until all tokens fit into one tile, because each further tile of tokens adds to the whole gradient of the output
matrix once more.

With z = h W^T / T, p = softmax(z) and H its entropy: d log p_t / dz = 1_t - p and dH / dz = -p (log p + H).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from learner.kernels.linear import outer, product

TILE_VOCABULARY, LEAST_VOCABULARY = 8192, 1024
"""The most and, if the vocabulary has as many, the fewest of its entries in a tile."""
TILE_LOGITS = {"cpu": 1 << 22, "cuda": 1 << 27}
"""Logits per tile, by device. A few MiB fit a processor's cache; a GPU needs larger products to be fully used."""


def log_probabilities(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, temperature: float, entropy_gradient: bool
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target and entropy, nats, (num_tokens,) float32, of softmax(logits / temperature).

    `hidden`: (num_tokens, width); `weight`: (vocab_size, width) and `bias`: (vocab_size,) of the head; `targets`:
    (num_tokens,) int64. Without `entropy_gradient` the entropies carry no gradient.
    """
    log_probs, entropies = _Head.apply(hidden, weight, bias, targets, temperature, entropy_gradient)
    return log_probs, entropies if entropy_gradient else entropies.detach()


def tiles(size: int, length: int) -> Iterator[slice]:
    """Slices that cover 0..size, each of `length` except the last, which may be shorter."""
    return (slice(start, min(start + length, size)) for start in range(0, size, length))


@dataclass
class _Running:
    """Running results over the vocabulary, each (num_tokens,) float32, for an online softmax.

    `largest`: max z; `total`: sum of exp(z - largest); `weighted`: sum of z exp(z - largest); `target`: the target's z.
    """

    largest: Tensor
    total: Tensor
    weighted: Tensor
    target: Tensor

    @classmethod
    def zeros(cls, like: Tensor) -> "_Running":
        """The results before any logit: `largest` is -inf, the rest 0."""
        zeros = (like.new_zeros(len(like), dtype=torch.float32) for _ in range(3))
        return cls(like.new_full((len(like),), -torch.inf, dtype=torch.float32), *zeros)

    def add(self, logits: Tensor, targets: Tensor, words: slice) -> None:
        """Adds the logits (num_tokens, num_words) of the vocabulary entries `words`."""
        largest = torch.maximum(self.largest, logits.amax(-1))
        fade = (self.largest - largest).exp()
        p = (logits - largest[:, None]).exp_()
        self.total = self.total * fade + p.sum(-1)
        self.weighted = self.weighted * fade + torch.linalg.vecdot(p, logits)
        place = (targets - words.start).clamp(0, logits.shape[1] - 1)
        here = (targets >= words.start) & (targets < words.stop)
        self.target = torch.where(here, logits.gather(-1, place[:, None]).squeeze(-1), self.target)
        self.largest = largest


class _Head(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        entropy_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        many, words = _tile(len(hidden), len(weight), hidden.device.type)
        log_probs, entropies, norms = (hidden.new_empty(len(hidden), dtype=torch.float32) for _ in range(3))
        kept = None
        for span in tiles(len(hidden), many):
            running = _Running.zeros(hidden[span])
            for part in tiles(len(weight), words):
                logits = _logits(hidden[span], weight, bias, part, temperature)
                running.add(logits, targets[span], part)
                kept = logits if logits.shape == (len(hidden), len(weight)) else None
            norms[span] = running.largest + running.total.log()
            log_probs[span] = running.target - norms[span]
            entropies[span] = norms[span] - running.weighted / running.total
        ctx.save_for_backward(hidden, weight, bias, targets, norms, entropies, kept)
        ctx.temperature, ctx.entropy_gradient = temperature, entropy_gradient
        return log_probs, entropies

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, norms, entropies, kept = ctx.saved_tensors
        many, words = _tile(len(hidden), len(weight), hidden.device.type)
        d_hidden = torch.zeros_like(hidden, dtype=torch.float32)
        d_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        d_bias = torch.zeros_like(bias) if bias is not None and ctx.needs_input_grad[2] else None
        for part in tiles(len(weight), words):
            d_part = None
            for span in tiles(len(hidden), many):
                logits = _logits(hidden[span], weight, bias, part, ctx.temperature) if kept is None else kept
                of_entropy = (grads[1][span], entropies[span]) if ctx.entropy_gradient else None
                d_logits = _gradient(logits, norms[span], targets[span] - part.start, grads[0][span], of_entropy)
                d_logits = _over(d_logits, ctx.temperature).to(weight.dtype)
                d_hidden[span] += product(d_logits, weight[part].t())
                if d_weight is not None:
                    more = outer(d_logits, hidden[span].to(weight.dtype))
                    d_part = more if d_part is None else d_part.float().add_(more)
                if d_bias is not None:
                    d_bias[part] += d_logits.sum(0)
            if d_weight is not None:
                d_weight[part] = 0 if d_part is None else d_part
        return d_hidden.to(hidden.dtype), d_weight, d_bias, None, None, None


def _tile(num_tokens: int, vocabulary: int, device: str) -> tuple[int, int]:
    """Size of a tile: (number of tokens, number of vocabulary entries)."""
    fits = max(1, TILE_LOGITS[device] // max(1, num_tokens))
    even = 1 << fits.bit_length() - 1  # a power of two, because products of odd sizes are slower
    words = min(vocabulary, TILE_VOCABULARY, max(LEAST_VOCABULARY, even))
    return max(1, TILE_LOGITS[device] // words), words


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, part: slice, temperature: float) -> Tensor:
    """Logits (num_tokens, num_words) / temperature, float32; the product is computed in the weight's dtype."""
    logits = product(hidden.to(weight.dtype), weight[part], None if bias is None else bias[part]).float()
    return _over(logits, temperature)


def _over(values: Tensor, temperature: float) -> Tensor:
    """The values, divided in place; at temperature 1 that pass over them is saved."""
    return values.div_(temperature) if temperature != 1 else values


def _gradient(
    logits: Tensor, norms: Tensor, places: Tensor, of_log_prob: Tensor, of_entropy: tuple[Tensor, Tensor] | None
) -> Tensor:
    """Gradient of the loss with respect to the logits, (num_tokens, num_words).

    `places`: index of each token's target among the words, out of range if the target is not among them; `of_log_prob`:
    gradient with respect to the log-probabilities; `of_entropy`: gradient with respect to the entropies, and the
    entropies, or None. All of these, and `norms`, are (num_tokens,).
    """
    log_p = logits - norms[:, None]
    d_logits = log_p.exp()
    if of_entropy is None:
        d_logits *= -of_log_prob[:, None]
    else:
        gradient, entropy = of_entropy
        d_logits *= (log_p.add_(entropy[:, None])).mul_(-gradient[:, None]).sub_(of_log_prob[:, None])
    here = (places >= 0) & (places < logits.shape[1])
    return d_logits.scatter_add_(1, (places * here)[:, None], (of_log_prob * here)[:, None])
