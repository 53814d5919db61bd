"""Channels from a text and a picture to reasonings whose dependence on either part is known exactly, as a test of
`kit.diagnosis.modality`.

Texts and pictures are finitely many; p(z|t,v) is given for finitely many reasonings z. A task is a pair (t, v): both
parts drawn independently, or the same latent seen in both. Every expectation is a sum, in nats. Pure numpy in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from research.channels.links import drawn, softmax
from squelch.kit.diagnosis.modality import PartEvaluation, read_part

Source = Literal["text", "picture", "both", "either"]
"""What the reasoning is read from. `both`: each part says half of it; `either`: each says all of it."""


@dataclass(frozen=True)
class ModalChannel:
    """`p`: (num_texts, num_pictures, num_reasonings) p(z|t,v); `same`: whether a task's text and picture show one
    latent, and are independent otherwise."""

    p: np.ndarray
    same: bool = False

    def picture(self) -> float:
        """I(V;Z|T) for independent parts; with one latent, the mean of log p(z|t,v) / E_v' p(z|t,v')."""
        return self._gain(self.p.mean(axis=1, keepdims=True))

    def text(self) -> float:
        """The same with the parts exchanged."""
        return self._gain(self.p.mean(axis=0, keepdims=True))

    def information(self) -> float:
        """I(X;Z) of all tasks."""
        tasks = np.einsum("ttz->tz", self.p) if self.same else self.p.reshape(-1, self.p.shape[2])
        return float((tasks * (np.log(tasks) - np.log(tasks.mean(axis=0)))).sum(axis=1).mean())

    def draw(self, num_tasks: int, samples: int, seed: int) -> dict[str, PartEvaluation | None]:
        """Both evaluations of random tasks with `samples` reasonings each."""
        rng = np.random.default_rng(seed)
        texts, pictures = (rng.integers(size, size=num_tasks) for size in self.p.shape[:2])
        pictures = texts if self.same else pictures
        task = np.repeat(np.arange(num_tasks), samples)
        z = drawn(self.p[texts[task], pictures[task]], rng)
        log_p = np.log(self.p)
        swapped = {
            "picture": log_p[texts[task][:, None], pictures[None, :], z[:, None]],
            "text": log_p[texts[None, :], pictures[task][:, None], z[:, None]],
        }
        parts = {"picture": pictures, "text": texts}
        return {name: read_part(swapped[name], task, parts[name], (seed,)) for name in parts}

    def _gain(self, mixture: np.ndarray) -> float:
        values = (self.p * (np.log(self.p) - np.log(mixture))).sum(axis=2)
        return float(np.diag(values).mean() if self.same else values.mean())


def modal_channel(source: Source, seed: int, size: int = 64, strings: int = 400, strength: float = 3.0) -> ModalChannel:
    """A channel of Gaussian logits. `size`: texts, and pictures; `strength`: how much a reasoning depends on
    what it is read from."""
    rng = np.random.default_rng(seed)
    first, second = (strength * rng.normal(size=(size, strings)) for _ in range(2))
    if source == "either":
        of_latent = softmax(first)
        return ModalChannel((of_latent[:, None] + of_latent[None, :]) / 2, same=True)
    logits = {"text": first[:, None], "picture": second[None, :], "both": (first[:, None] + second[None, :]) / 2**0.5}
    return ModalChannel(np.maximum(softmax(np.broadcast_to(logits[source], (size, size, strings))), 1e-300))
