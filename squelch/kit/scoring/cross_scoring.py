"""Cross-scoring: the matrix L[s, j] = log p(Z_s | X_j) of every reasoning under every prompt (paper, section 2.3).

Computation is shared as follows. The ids that all prompts have in common at their beginning are forwarded once, and
each prompt's remaining ids once. Each reasoning is scored against a prompt's keys and values without copying them: the
queries of a whole batch attend to the shared prefix in one call, and causally to their own tokens
(`kit.scoring.prefix_attention`). The log-probability of Z's first token comes from the prompt's last position, so
only |Z| - 1 tokens are forwarded, and the output head is applied at these positions only. Equal reasonings and equal
prompts are scored once. `path_sums` scores answers too: continuations of a prompt that begin alike, such as several
answers after one reasoning, are one row, a tree of tokens (`kit.scoring.token_trees`).

A prompt whose continuations do not fill a pass can share one with other prompts: their rows are packed into a forest
(`kit.packed.packing`), which is forwarded at once. Of the two ways, `columns="measured"` takes for each matrix the
one that is expected to take less time on this device (`kit.scoring.passes`).

Invariants:

- All entries of a matrix are computed with the same weights, and in the same way.
- The result equals one plain forward for each pair to 1e-4 nats per token in float32
  (tests/kit/scoring/test_cross_scoring.py).
- Memory beyond the weights is bounded: at most `token_budget` forwarded tokens at a time (or one sequence), on a CPU
  `CPU_TOKENS`; keys and values of one batch of prompts (none of packed prompts), `prefix_attention.MAX_SCORES`
  attention scores and `MAX_LOGITS` logits (`actors.scorer.memory`).
- Only causal models with full attention in every layer are accepted. The constructor compares a short probe with the
  model's own forward, so an architecture with another attention is refused instead of scored wrongly.

Imports neither Ray nor vLLM. Waits for nobody.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from squelch.kit.packed.layout import Layout
from squelch.kit.packed.packing import Forest, pack
from squelch.kit.packed.vision import decoder, use_attention
from squelch.kit.pictures.geometry import Vision
from squelch.kit.process.progress_marks import Marks, Progress
from squelch.kit.records.content import PlacedPictures
from squelch.kit.records.shared_prefix import distinct
from squelch.kit.scoring.models import plain_log_probs, probe_ids, refuse_other_attention
from squelch.kit.scoring.passes import (
    Columns,
    OneAPass,
    PassCosts,
    Place,
    Work,
    packed_passes,
    padded,
    refuse_bad_paths,
    refuse_bad_rows,
)
from squelch.kit.scoring.picture_features import PictureFeatures, Pictures, Spot
from squelch.kit.scoring.prefix_attention import NAMES, LayerCache, PrefixContext
from squelch.kit.scoring.token_trees import Path, TokenTree

logger = logging.getLogger(__name__)


Ways = Literal["one", "packed", "measured"]
"""Prompts of a pass: one, as many as fit, or what takes less time."""
CPU_TOKENS = 1024
"""Most tokens forwarded at once on a CPU, even if the budget is larger: more tokens do not fit into the CPU's caches
(measured with 0.8 M and 3.3 M parameters)."""
MAX_LOGITS = {"cpu": 1 << 24, "cuda": 1 << 26}
"""Most logits held at once, by device (64 and 256 MiB in float32); without a bound a vocabulary of 150,000 would need
gigabytes."""
PROBE_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}
"""Largest allowed difference in log-probability (nats) from the model's own forward, by the dtype of the weights."""


def _chosen(rows: Sequence[np.ndarray], places: Sequence[int]) -> list[np.ndarray]:
    return [np.asarray(rows[place], dtype=np.int64) for place in places]


class Prefilled(NamedTuple):
    """A prompt's keys and values, its last hidden state (width,), and the position of the next token."""

    cache: LayerCache
    last: Tensor
    start: int


class CrossScorer:
    """Scores reasonings under prompts with one causal language model; see the module's head.

    `token_budget`: tokens forwarded at once, including padding. `temperature`: temperature of the scored distribution.
    `kernels`: form of attention, `fast` or `plain`. `columns`: `one` scores one prompt a pass, `packed` as many as fit,
    and `measured` what takes less time. On a GPU packed rows need a compilation of some seconds, once a process.
    `vision`: how a model with a vision tower is fed pictures; None for other models, and if none are shown.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        token_budget: int,
        temperature: float = 1.0,
        kernels: str = "fast",
        columns: Ways = "one",
        vision: Vision | None = None,
    ) -> None:
        refuse_other_attention(model.config)
        plain = plain_log_probs(model)
        use_attention(model, NAMES[kernels])
        self.model = model.eval()
        self._pictures = PictureFeatures(model, vision)
        self.temperature = temperature
        self.device = next(model.parameters()).device
        self.token_budget = min(token_budget, CPU_TOKENS) if self.device.type == "cpu" else token_budget
        self.context_length = int(model.config.get_text_config().max_position_embeddings)
        self._marks, self._working = Marks(), False
        self.num_forwarded = self.num_passes = 0
        """Tokens forwarded since construction, including padding, and forward passes."""
        self.columns: Ways = "one"
        self.costs = _no_costs()
        """What passes have cost, by way."""
        self._check(plain)
        self.columns, self.costs = columns, _no_costs()
        self.way: Literal["one", "packed"] = "one"
        """How the last matrix was scored."""

    @torch.inference_mode()
    def matrix(
        self,
        prompts: Sequence[np.ndarray],
        reasonings: Sequence[np.ndarray],
        wanted: np.ndarray | None = None,
        pictures: Pictures | None = None,
        positions: Sequence[np.ndarray] | None = None,
    ) -> np.ndarray:
        """L (num_reasonings, num_prompts) float64: log p(Z_s | X_j) in nats, summed over the tokens of Z_s.

        Prompts and reasonings are 1-D integer arrays of at least one id. `wanted`: (num_reasonings, num_prompts) bool,
        the pairs to score; other pairs are NaN. `pictures`: the prompts' pictures; prompts are merged, and share keys
        and values, by ids and pictures. `positions`: of the prompts' tokens, as of `kit.scoring.passes.Columns`, if
        no pictures give them; equal content has equal positions. Raises ValueError if a pair, even an unwanted one,
        exceeds the context, and for pictures that the model cannot be fed.
        """
        refuse_bad_rows(prompts, reasonings, self.context_length)
        shown, fed = self._pictures.shown(prompts, pictures)
        positions = positions if fed is None else self._pictures.positions(prompts, fed)
        (columns, column_of), (samples, sample_of) = distinct(shown), distinct(reasonings)
        needed = np.ones((len(samples), len(columns)), dtype=bool)
        if wanted is not None:
            needed[:] = False
            np.logical_or.at(needed, (sample_of[:, None], column_of), wanted)
        rows = [[Path(z)] for z in _chosen(reasonings, samples)]
        under = [np.flatnonzero(own) for own in needed.T]
        asked = Columns(
            _chosen(prompts, columns),
            _chosen(shown, columns),
            [[rows[s] for s in own] for own in under],
            None if positions is None else [positions[j] for j in columns],
            None if fed is None else [fed[j] for j in columns],
        )
        found = np.full(needed.shape, np.nan)
        for j, values in enumerate(self._sums(asked)):
            found[under[j], j] = values
        result = found[np.ix_(sample_of, column_of)]
        return result if wanted is None else np.where(wanted, result, np.nan)

    @torch.inference_mode()
    def path_sums(
        self, prompts: Sequence[np.ndarray], rows: Sequence[Sequence[Sequence[Path]]], pictures: Pictures | None = None
    ) -> list[list[np.ndarray]]:
        """Log-likelihoods, nats, of continuations of each prompt: of row r of prompt j (num_paths,) float64 at [j][r].

        Prompts, with their `pictures`, are distinct. What the paths of a row share is computed once. Raises ValueError
        for an empty prompt or path, if a path exceeds the context, and for pictures that the model cannot be fed.
        """
        refuse_bad_paths(prompts, rows, self.context_length)
        own, (shown, fed) = _chosen(prompts, range(len(prompts))), self._pictures.shown(prompts, pictures)
        positions = None if fed is None else self._pictures.positions(prompts, fed)
        found = self._sums(Columns(own, _chosen(shown, range(len(own))), rows, positions, fed))
        ends = [np.cumsum([len(row) for row in each])[:-1] for each in rows]
        return [np.split(sums, at) if rows[j] else [] for j, (sums, at) in enumerate(zip(found, ends, strict=True))]

    def _sums(self, columns: Columns) -> list[np.ndarray]:
        """The sum of each path, (num_paths,) float64 by prompt."""
        self._pictures.forget()
        self._marks.begin()
        self._working = True
        try:
            alone = OneAPass(columns, self.token_budget)
            if self.columns == "one" or (self.columns == "measured" and alone.fills_passes()):
                return self._one_by_one(columns, alone)
            plan = packed_passes(columns, self.token_budget)
            if self.columns == "measured" and not self._packing_pays(columns, plan, alone.total):
                return self._one_by_one(columns, alone)
            return self._packed(columns, *plan)
        finally:
            self._working = False

    def _packing_pays(self, columns: Columns, plan: tuple[list[list[Place]], Work], alone: Work) -> bool:
        """Whether packed prompts are expected to take less time. The first call measures both ways, on the prompts of
        one pass and on the first alone."""
        passes, packed = plan
        if not self.costs["packed"].known:
            self._measure(columns, max(2, len({j for j, _ in passes[0]})))
        return self.columns != "one" and self.costs["packed"].seconds(packed) < self.costs["one"].seconds(alone)

    def _measure(self, columns: Columns, count: int) -> None:
        """Fills `costs`. On a GPU the first of two rounds is not counted, because it compiles. If the two ways differ
        by more than rounding, one prompt is scored a pass from then on."""
        before, worst = (self.num_passes, self.num_forwarded), 0.0
        for _ in range(1 if self.device.type == "cpu" else 2):
            self.costs = _no_costs()
            for part in (columns.first(1), columns.first(count)):
                one = self._one_by_one(part, OneAPass(part, self.token_budget))
                packed = self._packed(part, *packed_passes(part, self.token_budget))
                lengths = [len(path.ids) - path.start for own in part.paths for path in own]
                off = np.abs(np.concatenate(one) - np.concatenate(packed)) / lengths
                worst = max(worst, float(off.max(initial=0.0)))
        self.num_passes, self.num_forwarded = before
        if not worst <= PROBE_TOLERANCE[self.model.dtype]:
            logger.warning("packed prompts differ by %.3g nats a token, so one prompt is scored a pass", worst)
            self.columns = "one"

    @contextmanager
    def _timed(self, way: Literal["one", "packed"], work: Work) -> Iterator[None]:
        """Takes into account what this work costs. A CPU's own seconds, where one thread does all of it, because other
        processes change the clock's."""
        clock = time.thread_time if self.device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
        self.way, start = way, clock()
        yield
        self.costs[way].add(work, clock() - start)

    def _packed(self, columns: Columns, passes: list[list[Place]], work: Work) -> list[np.ndarray]:
        """The sums of packed prompts."""
        sums = [np.zeros(len(paths)) for paths in columns.paths]
        with self._timed("packed", work):
            for places in passes:
                for (j, k), value in zip(places, self._pass_sums(columns, places), strict=True):
                    sums[j][k] = value
        return sums

    def _pass_sums(self, columns: Columns, places: list[Place]) -> np.ndarray:
        """The sum of each path of one packed pass, (num_paths,) float64."""
        paths = [columns.paths[j][k] for j, k in places]
        rows, shown = (
            [np.concatenate([of[j], path.ids[:-1]]) for (j, _), path in zip(places, paths, strict=True)]
            for of in (columns.prompts, columns.shown)
        )
        forest = pack(rows, identities=shown)
        spots = self._pictures.packed_spots(columns, places, forest)
        hidden = self._forward_packed(forest, columns.packed_positions(places, forest), spots)
        before = [len(columns.prompts[j]) - 1 + path.start for (j, _), path in zip(places, paths, strict=True)]
        at = [place[start:] for place, start in zip(forest.places, before, strict=True)]
        states, owner = np.unique(np.concatenate(at), return_inverse=True)
        targets = torch.from_numpy(np.concatenate([path.ids[path.start :] for path in paths])).to(self.device)
        chosen = hidden[torch.from_numpy(states).to(self.device)]
        values = self._log_probs(chosen, targets, self.temperature, owner).double().cpu().numpy()
        return np.add.reduceat(values, np.cumsum([0, *map(len, at[:-1])]))

    def _forward_packed(self, forest: Forest, positions: np.ndarray, spots: Sequence[Spot]) -> Tensor:
        """Hidden states (num_tokens, width) of packed rows."""
        with torch.inference_mode(False), torch.no_grad():  # as the learner calls the compiled attention
            ids, at = (torch.from_numpy(array).to(self.device) for array in (forest.token_ids, positions))
            out = decoder(self.model)(
                **self._pictures.fed(ids[None], spots),
                position_ids=at[..., None, :],
                use_cache=False,
                layout=Layout.of(forest, ids.device),
            )
        self._fed(forest.num_tokens)
        return out.last_hidden_state[0]

    def _fed(self, tokens: int) -> None:
        """Counts a forward pass."""
        self.num_passes += 1
        self.num_forwarded += tokens
        self._marks.add()

    def _one_by_one(self, columns: Columns, work: OneAPass) -> list[np.ndarray]:
        """The sums of prompts that are scored one a pass."""
        sums = [np.zeros(len(paths)) for paths in columns.paths]
        with self._timed("one", work.total):
            for j, prompt in self._prefilled(columns, work):
                batches, trees = work.batches[j], work.trees[j]
                if trees is not None:
                    sums[j] = self._tree_sums(prompt, trees, batches)
                elif columns.paths[j]:
                    samples = [path.ids for path in columns.paths[j]]
                    sums[j] = self._first_log_probs(prompt.last, samples) + self._rest_sums(prompt, samples, batches)
        return sums

    def _tree_sums(self, prompt: Prefilled, trees: list[TokenTree], batches: list[np.ndarray]) -> np.ndarray:
        """The sums of the trees' paths, (num_paths,) float64; `batches`: of the trees with a fed token."""
        first = (self._logits(prompt.last).float() / self.temperature).log_softmax(-1).double().cpu().numpy()
        edges = [np.where(tree.before < 0, first[tree.target], 0.0) for tree in trees]
        for batch in batches:
            for i, values in zip(batch, self._edges(prompt, [trees[i] for i in batch]), strict=True):
                edges[i][trees[i].before >= 0] = values
        sums = [values[edges_of].sum() for tree, values in zip(trees, edges, strict=True) for edges_of in tree.paths]
        return np.array(sums, dtype=np.float64)

    def _edges(self, prompt: Prefilled, trees: list[TokenTree]) -> list[np.ndarray]:
        """For each tree the log-probability of its wanted tokens that a fed node precedes, float64. Trees that are
        chains need no mask."""
        positions, seen = (None, None) if trees[0].is_chain else self._shape(prompt.start, trees)
        hidden, _ = self._forward([tree.fed for tree in trees], prompt.cache, prompt.start, positions, seen)
        inner = [tree.before >= 0 for tree in trees]
        row = np.repeat(np.arange(len(trees)), [mask.sum() for mask in inner])
        before = np.concatenate([tree.before[mask] for tree, mask in zip(trees, inner, strict=True)])
        target = np.concatenate([tree.target[mask] for tree, mask in zip(trees, inner, strict=True)])
        states = hidden[torch.from_numpy(row).to(self.device), torch.from_numpy(before).to(self.device)]
        values = self._log_probs(states, torch.from_numpy(target).to(self.device), self.temperature)
        return np.split(values.double().cpu().numpy(), np.cumsum([mask.sum() for mask in inner])[:-1])

    def _shape(self, start: int, trees: list[TokenTree]) -> tuple[Tensor, Tensor]:
        """Each fed node's position (rows, longest), and the nodes that it attends to (rows, longest, longest); padding
        attends to itself."""
        longest = max(len(tree.fed) for tree in trees)
        positions, seen = (
            np.zeros((len(trees), longest), np.int64),
            np.tile(np.eye(longest, dtype=bool), (len(trees), 1, 1)),
        )
        for row, tree in enumerate(trees):
            positions[row, : len(tree.fed)] = start + tree.depth
            seen[row, : len(tree.fed), : len(tree.fed)] = tree.seen()
        return torch.from_numpy(positions).to(self.device), torch.from_numpy(seen).to(self.device)

    def progress(self) -> Progress:
        """A mark for each batch of tokens; busy while a matrix is computed. Any thread may ask."""
        return self._marks.seen(self._working)

    @torch.inference_mode()
    def token_log_probs(
        self, prompt: np.ndarray, reasoning: np.ndarray, temperature: float, pictures: PlacedPictures = ()
    ) -> np.ndarray:
        """Log-probability of each token of one reasoning, (num_tokens,) float32, nats, at the given temperature;
        `pictures`: among the ids of both. Raises ValueError for pictures that the model cannot be fed."""
        ids = np.concatenate([prompt, reasoning]).astype(np.int64)
        positions, spots = self._pictures.of_row(ids[:-1], pictures)
        hidden, _ = self._forward([ids[:-1]], None, 0, positions, spots=spots)
        targets = torch.from_numpy(ids[len(prompt) :]).to(self.device)
        return self._log_probs(hidden[0, len(prompt) - 1 :], targets, temperature).cpu().numpy()

    @torch.inference_mode()
    def token_logits(self, prompt: np.ndarray, completion: np.ndarray) -> Iterator[Tensor]:
        """The logits of each token of one completion, (num_tokens, vocab_size) float32, in blocks of at most
        `MAX_LOGITS`."""
        ids = np.concatenate([prompt, completion]).astype(np.int64)
        hidden, _ = self._forward([ids[:-1]], None)
        size = max(1, MAX_LOGITS[self.device.type] // self.model.config.get_text_config().vocab_size)
        for states in hidden[0, len(prompt) - 1 :].split(size):
            yield self._logits(states).float()

    def _prefilled(self, columns: Columns, work: OneAPass) -> Iterator[tuple[int, Prefilled]]:
        """For each prompt its index, and its keys and values. Memory holds one batch at a time.

        All prompts have the same content in their first `work.shared` tokens.
        """
        prompts, shared = columns.prompts, work.shared
        own = [columns.positions_of(j) for j in range(len(prompts))]
        positions = torch.from_numpy(own[0][..., None, :shared]).to(self.device)
        spots = self._pictures.spots(columns, [0], 0, shared)
        first = [prompts[0][:shared]]
        base = self._forward(first, None, 0, positions, capture=True, spots=spots)[1] if shared else None
        common = [(key[0], value[0]) for key, value in base.captured] if base else None
        for batch in work.prompts:
            positions = torch.from_numpy(padded([own[j][..., shared:] for j in batch])).to(self.device)
            rows, spots = [prompts[j][shared:] for j in batch], self._pictures.spots(columns, batch.tolist(), shared)
            hidden, seen = self._forward(rows, common, 0, positions, capture=True, spots=spots)
            for row, j in enumerate(batch.tolist()):
                size = len(prompts[j]) - shared
                kept = [(key[row, :, :size], value[row, :, :size]) for key, value in seen.captured]
                yield j, Prefilled(_joined(common, kept), hidden[row, size - 1], columns.start(j))

    def _forward(
        self,
        rows: list[np.ndarray],
        prefix: LayerCache | None,
        start: int = 0,
        positions: Tensor | None = None,
        seen: Tensor | None = None,
        capture: bool = False,
        spots: Sequence[Spot] = (),
    ) -> tuple[Tensor, PrefixContext]:
        """Hidden states (rows, longest, width) of rows that continue the shared prefix, padded on the right.
        `positions`: (..., rows, longest); None: they count from `start`. `seen`: of trees (`_shape`); None: the rows
        are chains. `spots`: the rows' pictures."""
        ids = padded(rows)
        if positions is None:
            positions = start + torch.arange(ids.shape[1], device=self.device).unsqueeze(0)
        context = PrefixContext(prefix, capture, seen)
        out = decoder(self.model)(
            **self._pictures.fed(torch.from_numpy(ids).to(self.device), spots),
            position_ids=positions,
            use_cache=False,
            shared_prefix=context,
        )
        self._fed(ids.size)
        return out.last_hidden_state, context

    def _first_log_probs(self, last: Tensor, samples: list[np.ndarray]) -> np.ndarray:
        """(num_samples,) float64: log p of each sample's first token after the prompt whose last state is `last`."""
        log_probs = (self._logits(last).float() / self.temperature).log_softmax(-1)
        return log_probs.double().cpu().numpy()[[z[0] for z in samples]]

    def _rest_sums(self, prompt: Prefilled, samples: list[np.ndarray], batches: list[np.ndarray]) -> np.ndarray:
        """(num_samples,) float64: log p of each sample's tokens after the first, summed; `batches`: of the samples with
        more than one token."""
        sums = np.zeros(len(samples))
        for batch in batches:
            sums[batch] = self._batch_sums(prompt, [samples[s] for s in batch])
        return sums

    def _batch_sums(self, prompt: Prefilled, rows: list[np.ndarray]) -> np.ndarray:
        hidden, _ = self._forward([row[:-1] for row in rows], prompt.cache, prompt.start)
        lengths = torch.tensor([len(row) - 1 for row in rows], device=self.device)
        valid = torch.arange(hidden.shape[1], device=self.device) < lengths.unsqueeze(1)
        targets = torch.from_numpy(np.concatenate([row[1:] for row in rows])).to(self.device)
        log_probs = self._log_probs(hidden[valid], targets, self.temperature).double()
        owner = torch.repeat_interleave(torch.arange(len(rows), device=self.device), lengths)
        return log_probs.new_zeros(len(rows)).index_add(0, owner, log_probs).cpu().numpy()

    def _log_probs(
        self, hidden: Tensor, targets: Tensor, temperature: float, owner: np.ndarray | None = None
    ) -> Tensor:
        """(num_targets,) float32 log-softmax at the targets, in blocks that keep the logits within MAX_LOGITS. `owner`:
        (num_targets,) the state before each target; None: each state has one."""
        size = max(1, MAX_LOGITS[self.device.type] // self.model.config.get_text_config().vocab_size)
        if owner is None:
            blocks = zip(hidden.split(size), targets.split(size), strict=True)
            return torch.cat([_at(self._logits(states), wanted, temperature) for states, wanted in blocks])
        order = np.argsort(owner, kind="stable")
        cuts = np.searchsorted(owner[order], np.arange(size, len(hidden), size))
        found = []
        for block, (states, chosen) in enumerate(zip(hidden.split(size), np.split(order, cuts), strict=True)):
            which, at = (torch.from_numpy(x).to(self.device) for x in (chosen, owner[chosen] - block * size))
            found.append(_at(self._logits(states), targets[which], temperature, at))
        return torch.cat(found)[torch.from_numpy(np.argsort(order)).to(self.device)]

    def _logits(self, hidden: Tensor) -> Tensor:
        head = self.model.get_output_embeddings()
        assert head is not None, "a causal language model has an output head"
        return head(hidden)

    @torch.inference_mode()
    def _check(self, plain: Tensor) -> None:
        """Compares shared-prefix attention with the model's own forward on the probe of `plain_log_probs`."""
        ids = probe_ids(self.model)
        own = np.array([self._probe_sum(ids[:cut], ids[cut:]) for cut in (4, 9)])
        expected = np.array([float(plain[cut - 1 :].sum()) for cut in (4, 9)])
        worst, bound = np.abs(own - expected).max(), PROBE_TOLERANCE[self.model.dtype] * len(ids)
        if not worst <= bound:
            raise ValueError(
                f"model_type={self.model.config.model_type} cannot be cross-scored: shared-prefix attention differs "
                f"from its own forward by {worst:.3g} nats over {len(ids)} tokens (bound {bound:.3g})"
            )

    def _probe_sum(self, prompt: np.ndarray, reasoning: np.ndarray) -> float:
        """log p(Z | X) at temperature 1, computed by `matrix`."""
        temperature, self.temperature = self.temperature, 1.0
        value = float(self.matrix([prompt, prompt[:-1]], [reasoning])[0, 0])
        self.temperature = temperature
        return value


def _at(logits: Tensor, targets: Tensor, temperature: float, owner: Tensor | None = None) -> Tensor:
    """(num_targets,) float32 log-softmax of the logits (num_states, vocab_size), which may be overwritten, at the
    targets. `owner`: the state of each target; None: each state has one."""
    if owner is None:
        owner = torch.arange(len(logits), device=logits.device)
    if logits.is_cuda and temperature == 1:  # one kernel that reads what the product wrote
        return logits.log_softmax(-1, dtype=torch.float32)[owner, targets]
    logits = logits.float().div_(temperature)
    own, top = logits[owner, targets], logits.amax(-1)
    rest = logits.sub_(top.unsqueeze(1)).exp_().sum(-1).log_()  # in place: half the time
    return own - (top + rest)[owner]


def _no_costs() -> dict[str, PassCosts]:
    return {"one": PassCosts(), "packed": PassCosts()}


def _joined(common: LayerCache | None, own: LayerCache) -> LayerCache:
    """Keys and values of the common prefix and of the rest of a prompt, one contiguous pair per layer."""
    if common is None:
        return own
    return [(torch.cat([a, c], 1), torch.cat([b, d], 1)) for (a, b), (c, d) in zip(common, own, strict=True)]
