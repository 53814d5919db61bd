"""Channels from prompt to reasoning whose mutual information is known exactly, as a test of the estimates.

A channel has finitely many equally likely prompts and finitely many strings. A string has up to `max_length` tokens and
then a terminator, or it is cut at that length. All strings are enumerated, so every expectation is a sum.

The terminator may or may not be part of Z. With the terminator's factor p(Z|X) is normalised over strings, and

    I(X;Z) = E[log p(Z|X) - log mean_x p(Z|x)]

is Shannon's mutual information. The Z of Squelch ends before the closing marker (docs/guide/scorer.md). Without that
factor the probability of a beginning, o(Z|X), is not normalised over strings of different lengths. The same expression
with o is the limit of MI-Seq-Est as N grows; it excludes the information in the time of stopping.
`information(terminated=False)` is that limit, over the strings that are not empty. Both values agree if stopping does
not depend on the prompt.

Pure numpy in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from research.channels.links import drawn
from squelch.kit.diagnosis.proxies import Scores, usable


@dataclass(frozen=True)
class Channel:
    """A channel. `log_p`, `log_open`: (num_prompts, num_strings) nats, log-likelihood of each string with and without
    the terminator's factor; `lengths`: (num_strings,) tokens without the terminator; `ends`: (num_strings,) 1 if a
    terminator follows, 0 if the string was cut."""

    log_p: np.ndarray
    log_open: np.ndarray
    lengths: np.ndarray
    ends: np.ndarray

    @property
    def num_prompts(self) -> int:
        """Number of prompts, all equally likely."""
        return len(self.log_p)

    def scores(self, terminated: bool) -> tuple[np.ndarray, np.ndarray]:
        """Log-likelihoods (num_prompts, num_strings) and tokens (num_strings,) of Z with or without the terminator."""
        return (self.log_p, self.lengths + self.ends) if terminated else (self.log_open, self.lengths)

    def information(self, terminated: bool = True, per_token: bool = False) -> float:
        """E[log p(Z|X) - log mean_x p(Z|x)], nats per sequence; `per_token` divides by |Z| inside E, as MI-Est does."""
        log_q, tokens = self.scores(terminated)
        gain = log_q - log_mean(log_q)
        return self._mean(gain / np.maximum(tokens, 1) if per_token else gain, tokens)

    def conditional_entropy(self, terminated: bool = True) -> float:
        """E[-log p(Z|X) / |Z|], nats per token, which the proxy H(Z|X) estimates."""
        log_q, tokens = self.scores(terminated)
        return self._mean(-log_q / np.maximum(tokens, 1), tokens)

    def mean_length(self) -> float:
        """Mean number of tokens, without the terminator."""
        return float((np.exp(self.log_p) * self.lengths).sum() / self.num_prompts)

    def _mean(self, values: np.ndarray, tokens: np.ndarray) -> float:
        """Expectation of `values` (num_prompts, num_strings) over prompts and their strings of at least one token."""
        weights = np.exp(self.log_p) * (tokens > 0)
        return float((weights * values).sum() / weights.sum())


def log_mean(log_q: np.ndarray) -> np.ndarray:
    """(num_prompts, n) -> (n,): log of the mean over prompts, numerically stable."""
    top = log_q.max(axis=0)
    return top + np.log(np.exp(log_q - top).mean(axis=0))


def random_channel(
    seed: int,
    *,
    num_prompts: int = 1024,
    vocabulary: int = 3,
    max_length: int = 5,
    strength: float = 1.0,
    sharpness: float = 0.5,
    stop: float = 0.15,
    stop_strength: float = 0.5,
) -> Channel:
    """A channel whose tokens are independent given prompt and position, with Gaussian logits.

    `strength`: scale of the part of the logits that depends on the prompt; `sharpness`: scale of the other part;
    `stop`: probability of stopping after each token; its logit is shifted by `stop_strength` * strength * a Gaussian
    that depends on the prompt and the position.
    """
    rng = np.random.default_rng(seed)
    common = sharpness * rng.normal(size=(1, max_length, vocabulary))
    logits = common + strength * rng.normal(size=(num_prompts, max_length, vocabulary))
    log_token = logits - np.log(np.exp(logits).sum(axis=2, keepdims=True))
    shift = stop_strength * strength * rng.normal(size=(num_prompts, max_length))
    odds = np.log(stop / (1 - stop)) + shift
    log_stop, log_go = -np.log1p(np.exp(-odds)), -np.log1p(np.exp(odds))
    log_stop[:, -1] = 0.0
    return _enumerated(log_token, log_stop, log_go)


def _enumerated(log_token: np.ndarray, log_stop: np.ndarray, log_go: np.ndarray) -> Channel:
    """The channel of all strings. log_token: (num_prompts, max_length, vocabulary); log_stop, log_go: (num_prompts,
    max_length), log-probability of stopping and of continuing after token t. As in a language model, a token's
    probability includes the preceding decision to continue; the final decision to stop is the terminator's factor."""
    num_prompts, max_length, _ = log_token.shape
    beginning = np.zeros((num_prompts, 1))
    whole, opened, lengths = [], [], []
    for t in range(max_length):
        tokens = (beginning[:, :, None] + log_token[:, t, None, :]).reshape(num_prompts, -1)
        opened.append(tokens)
        whole.append(tokens + log_stop[:, t, None])
        lengths.append(np.full(tokens.shape[1], t + 1))
        beginning = tokens + log_go[:, t, None]
    sizes = np.concatenate(lengths)
    return Channel(np.hstack(whole), np.hstack(opened), sizes, np.ones_like(sizes))


def draw(
    channel: Channel,
    rng: np.random.Generator,
    prompts: int,
    samples: int,
    *,
    terminated: bool = True,
    blind: bool = False,
) -> Scores:
    """The scores of `prompts` prompts, drawn without replacement, and of `samples` strings per prompt.

    `blind`: each string is sampled under another random prompt, so that it does not depend on its own prompt, but the
    scorer still uses the channel's likelihoods.
    """
    chosen = rng.choice(channel.num_prompts, size=prompts, replace=False)
    speakers = rng.integers(channel.num_prompts, size=prompts * samples) if blind else np.repeat(chosen, samples)
    strings = drawn(np.exp(channel.log_p[speakers]), rng)
    log_q, tokens = channel.scores(terminated)
    matrix = log_q[chosen][:, strings].T
    return usable(matrix, tokens[strings], np.repeat(np.arange(prompts), samples))
