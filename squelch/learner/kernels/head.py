"""The output head at sampled positions: log-probability and exact entropy, without a (tokens, vocabulary) tensor.

Logits are computed for one tile of tokens and vocabulary at a time, in the forward and again in the backward pass. Only
their log-sum-exp and entropy are kept for the backward pass, two numbers per token. If all logits fit into one tile,
they are kept too, which saves the second product. A tile has a fixed number of logits. Its part of the vocabulary
shrinks until all tokens fit into one tile, because each further tile of tokens adds to the whole gradient of the output
matrix once more.

With z = h W^T / T, p = softmax(z) and H its entropy: d log p_t / dz = 1_t - p and dH / dz = -p (log p + H).
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from squelch.kit.process.compiled import compiled
from squelch.learner.kernels.linear import outer, product

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


class _Running(NamedTuple):
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
        passes = _passes(hidden.device.type)
        many, words = _tile(len(hidden), len(weight), hidden.device.type)
        log_probs, entropies, norms = (hidden.new_empty(len(hidden), dtype=torch.float32) for _ in range(3))
        one = many >= len(hidden) and words >= len(weight)
        kept = _logits(hidden, weight, bias, temperature) if one else None
        for span in tiles(len(hidden), many):
            running = _Running.zeros(hidden[span])
            for part in tiles(len(weight), words):
                places = targets[span] - part.start
                if kept is None:
                    running = passes.add(running, hidden[span], weight[part], _part(bias, part), places, temperature)
                else:
                    running = _added(running, kept, places)
            norms[span] = running.largest + running.total.log()
            log_probs[span] = running.target - norms[span]
            entropies[span] = norms[span] - running.weighted / running.total
        ctx.save_for_backward(hidden, weight, bias, targets, norms, entropies, kept)
        ctx.temperature, ctx.entropy_gradient = temperature, entropy_gradient
        return log_probs, entropies

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, norms, entropies, kept = ctx.saved_tensors
        passes = _passes(hidden.device.type)
        many, words = _tile(len(hidden), len(weight), hidden.device.type)
        d_hidden = torch.zeros_like(hidden, dtype=torch.float32)
        d_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        d_bias = torch.zeros_like(bias) if bias is not None and ctx.needs_input_grad[2] else None
        for part in tiles(len(weight), words):
            d_part = None
            for span in tiles(len(hidden), many):
                of_entropy = (grads[1][span], entropies[span]) if ctx.entropy_gradient else None
                given = (norms[span], targets[span] - part.start, grads[0][span], of_entropy)
                if kept is None:
                    own = (hidden[span], weight[part], _part(bias, part), ctx.temperature)
                    d_logits = passes.gradient(*own, *given)
                else:
                    d_logits = _over(_gradient(kept, *given), ctx.temperature).to(weight.dtype)
                d_hidden[span] += product(d_logits, weight[part].t())
                if d_weight is not None:
                    more = outer(d_logits, hidden[span].to(weight.dtype))
                    d_part = more if d_part is None else d_part.float().add_(more)
                if d_bias is not None:
                    d_bias[part] += d_logits.sum(0)
            if d_weight is not None:
                d_weight[part] = 0 if d_part is None else d_part
        return d_hidden.to(hidden.dtype), d_weight, d_bias, None, None, None


class _Passes(NamedTuple):
    """The work on one tile, `_added_tile` and `_gradient_of_tile`, in the form for a device."""

    add: Callable[..., _Running]
    gradient: Callable[..., Tensor]


@cache
def _passes(device: str) -> _Passes:
    """On CUDA both are compiled: everything between two products is then one kernel, which reads the tile once or
    twice, instead of a dozen that read and write it each. On CPU a tile stays in the cache."""
    if device == "cuda":
        return _Passes(compiled(_added_tile), compiled(_gradient_of_tile))
    return _Passes(_added_tile, _gradient_of_tile)


def _tile(num_tokens: int, vocabulary: int, device: str) -> tuple[int, int]:
    """Size of a tile: (number of tokens, number of vocabulary entries)."""
    fits = max(1, TILE_LOGITS[device] // max(1, num_tokens))
    even = 1 << fits.bit_length() - 1  # a power of two, because products of odd sizes are slower
    words = min(vocabulary, TILE_VOCABULARY, max(LEAST_VOCABULARY, even))
    return max(1, TILE_LOGITS[device] // words), words


def _part(bias: Tensor | None, part: slice) -> Tensor | None:
    return None if bias is None else bias[part]


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    """Logits (num_tokens, num_words) / temperature, float32; the product is computed in the weight's dtype."""
    return _over(product(hidden.to(weight.dtype), weight, bias).float(), temperature)


def _over(values: Tensor, temperature: float) -> Tensor:
    """The values, divided in place; at temperature 1 that pass over them is saved."""
    return values.div_(temperature) if temperature != 1 else values


def _added_tile(
    running: _Running, hidden: Tensor, weight: Tensor, bias: Tensor | None, places: Tensor, temperature: float
) -> _Running:
    """The results with a tile's logits. `weight`, `bias`: of the tile's words; `places`: as in `_gradient`."""
    return _added(running, _logits(hidden, weight, bias, temperature), places)


def _added(running: _Running, logits: Tensor, places: Tensor) -> _Running:
    """The results with the logits (num_tokens, num_words) of further words."""
    largest = torch.maximum(running.largest, logits.amax(-1))
    fade = (running.largest - largest).exp()
    p = (logits - largest[:, None]).exp_()
    # Compiled, the sum is part of the kernel; a product of vectors would need p in memory.
    weighted = (p * logits).sum(-1) if torch.compiler.is_compiling() else torch.linalg.vecdot(p, logits)
    own = logits.gather(-1, places.clamp(0, logits.shape[1] - 1)[:, None]).squeeze(-1)
    return _Running(
        largest,
        running.total * fade + p.sum(-1),
        running.weighted * fade + weighted,
        torch.where(_among(places, logits), own, running.target),
    )


def _gradient_of_tile(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    temperature: float,
    norms: Tensor,
    places: Tensor,
    of_log_prob: Tensor,
    of_entropy: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """`_gradient` of a tile's products before their division by the temperature, in the weight's dtype."""
    logits = _logits(hidden, weight, bias, temperature)
    return _over(_gradient(logits, norms, places, of_log_prob, of_entropy), temperature).to(weight.dtype)


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
    if torch.compiler.is_compiling():  # then the comparison is part of the kernel, and scattering would be another
        words = torch.arange(logits.shape[1], device=logits.device)
        return d_logits + torch.where(words == places[:, None], of_log_prob[:, None], 0.0)
    here = _among(places, logits)
    return d_logits.scatter_add_(1, (places * here)[:, None], (of_log_prob * here)[:, None])


def _among(places: Tensor, logits: Tensor) -> Tensor:
    """Whether each token's target is among the words of the logits."""
    return (places >= 0) & (places < logits.shape[1])
