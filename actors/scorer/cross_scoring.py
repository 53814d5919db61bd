"""Cross-scoring: the matrix L[s, j] = log p(Z_s | X_j) of every reasoning under every prompt (paper, section 2.3).

Computation is shared as follows. The ids that all prompts have in common at their beginning are forwarded once, and
each prompt's remaining ids once. Each reasoning is scored against a prompt's keys and values without copying them: the
queries of a whole batch attend to the shared prefix in one call, and causally to their own tokens
(`actors.scorer.prefix_attention`). The log-probability of Z's first token comes from the prompt's last position, so
only |Z| - 1 tokens are forwarded, and the output head is applied at these positions only. Equal reasonings and equal
prompts are scored once. `path_sums` scores answers too: continuations of a prompt that begin alike, such as several
answers after one reasoning, are one row, a tree of tokens (`actors.scorer.token_trees`).

Invariants:

- All entries of a matrix are computed with the same weights and the same method.
- The result equals one plain forward for each pair to 1e-4 nats per token in float32
  (tests/actors/scorer/test_cross_scoring.py).
- Memory beyond the weights is bounded: at most `token_budget` forwarded tokens at a time (or one sequence), on a CPU
  `CPU_TOKENS`; keys and values of one batch of prompts, `prefix_attention.MAX_SCORES` attention scores and
  `MAX_LOGITS` logits.
- Only causal models with full attention in every layer are accepted. The constructor compares a short probe with the
  model's own forward, so an architecture with another attention is refused instead of scored wrongly.

Imports neither Ray nor vLLM. Waits for nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from squelch.actors.process.progress_marks import Marks, Progress
from squelch.actors.scorer.prefix_attention import NAMES, LayerCache, PrefixContext
from squelch.actors.scorer.token_trees import Path, TokenTree, tree_of
from squelch.actors.shared_prefix import common_length, distinct

CPU_TOKENS = 1024
"""Most tokens forwarded at once on a CPU, even if the budget is larger: more tokens do not fit into the CPU's caches
(measured with 0.8 M and 3.3 M parameters)."""
MAX_LOGITS = {"cpu": 1 << 24, "cuda": 1 << 26}
"""Most logits held at once, by device (64 and 256 MiB in float32); without a bound a vocabulary of 150,000 would need
gigabytes."""
ENOUGH_TOKENS = 512
"""Tokens in a batch beyond which throughput no longer grows on a CPU core (0.8 M parameters)."""
MAX_SHRINK = 0.75
"""A row that is shorter than this share of its batch's longest row starts a new batch."""
PROBE_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}
"""Largest allowed difference in log-probability (nats) from the model's own forward, by the dtype of the weights."""


def token_batches(lengths: Sequence[int], budget: int) -> list[np.ndarray]:
    """Indices in batches of similar length, longest first; rows x longest <= budget, or a single row.

    A batch of at least `ENOUGH_TOKENS` also ends before a row of which more than 25% would be padding.
    """
    batches: list[list[int]] = []
    longest = 0
    for index in np.argsort(-np.asarray(lengths), kind="stable"):
        rows = len(batches[-1]) if batches else 0
        within = (rows + 1) * longest <= budget
        similar = rows * longest < ENOUGH_TOKENS or lengths[index] >= MAX_SHRINK * longest
        if not (rows and within and similar):
            batches.append([])
            longest = int(lengths[index])
        batches[-1].append(int(index))
    return [np.array(batch, dtype=np.int64) for batch in batches]


def common_prefix_length(rows: Sequence[np.ndarray]) -> int:
    """Number of leading tokens that all rows share, below the shortest row's length so that each row keeps a token."""
    return min(common_length(rows), min(len(row) for row in rows) - 1)


def _chosen(rows: Sequence[np.ndarray], places: Sequence[int]) -> list[np.ndarray]:
    return [np.asarray(rows[place], dtype=np.int64) for place in places]


class CrossScorer:
    """Scores reasonings under prompts with one causal language model; see the module's head.

    `token_budget`: tokens forwarded at once, including padding. `temperature`: temperature of the scored distribution.
    `kernels`: form of attention, `fast` or `plain`.
    """

    def __init__(
        self, model: PreTrainedModel, token_budget: int, temperature: float = 1.0, kernels: str = "fast"
    ) -> None:
        _refuse_other_attention(model)
        plain = _plain_log_probs(model)
        model.set_attn_implementation(NAMES[kernels])
        self.model = model.eval()
        self.temperature = temperature
        self.device = next(model.parameters()).device
        self.token_budget = min(token_budget, CPU_TOKENS) if self.device.type == "cpu" else token_budget
        self.context_length = int(model.config.max_position_embeddings)
        self._marks, self._working = Marks(), False
        self.num_forwarded = 0
        """Tokens forwarded since construction, including padding."""
        self._check(plain)

    @torch.inference_mode()
    def matrix(
        self,
        prompts: Sequence[np.ndarray],
        reasonings: Sequence[np.ndarray],
        wanted: np.ndarray | None = None,
        identities: Sequence[np.ndarray] | None = None,
    ) -> np.ndarray:
        """L (num_reasonings, num_prompts) float64: log p(Z_s | X_j) in nats, summed over the tokens of Z_s.

        Prompts and reasonings are 1-D integer arrays of at least one id. `wanted`: (num_reasonings, num_prompts) bool,
        the pairs to score; other pairs are NaN. `identities`: the prompts' content (`actors.shared_prefix`), by which
        they are merged and share keys and values; None: their ids. Raises ValueError if a pair, even an unwanted one,
        exceeds the context.
        """
        self._refuse_bad_rows(prompts, reasonings)
        shown = prompts if identities is None else identities
        (columns, column_of), (samples, sample_of) = distinct(shown), distinct(reasonings)
        needed = np.ones((len(samples), len(columns)), dtype=bool)
        if wanted is not None:
            needed[:] = False
            np.logical_or.at(needed, (sample_of[:, None], column_of), wanted)
        shared = common_prefix_length([shown[j] for j in columns])
        self._marks.begin()
        self._working = True
        try:
            found = self._unique_matrix(_chosen(prompts, columns), _chosen(reasonings, samples), needed, shared)
        finally:
            self._working = False
        result = found[np.ix_(sample_of, column_of)]
        return result if wanted is None else np.where(wanted, result, np.nan)

    @torch.inference_mode()
    def path_sums(
        self, prompts: Sequence[np.ndarray], rows: Sequence[Sequence[Sequence[Path]]]
    ) -> list[list[np.ndarray]]:
        """Log-likelihoods, nats, of continuations of each prompt: of row r of prompt j (num_paths,) float64 at [j][r].

        Prompts are distinct. What the paths of a row share is computed once; nothing is shared between rows but the
        prompt. Raises ValueError for an empty prompt or path, and if a path exceeds the context.
        """
        self._refuse_bad_paths(prompts, rows)
        found: list[list[np.ndarray]] = [[] for _ in prompts]
        self._marks.begin()
        self._working = True
        try:
            for j, cache, last in self._prefilled(list(prompts), common_prefix_length(prompts)):
                found[j] = self._tree_sums(cache, last, [tree_of(paths) for paths in rows[j]])
        finally:
            self._working = False
        return found

    def _tree_sums(self, cache: LayerCache, last: Tensor, trees: list[TokenTree]) -> list[np.ndarray]:
        """The paths' sums by tree; chains are batched apart, because they need no mask."""
        first = (self._logits(last).float() / self.temperature).log_softmax(-1).double().cpu().numpy()
        edges = [np.where(tree.before < 0, first[tree.target], 0.0) for tree in trees]
        for chain in (True, False):
            own = [i for i, tree in enumerate(trees) if len(tree.fed) and tree.is_chain == chain]
            for batch in token_batches([len(trees[i].fed) for i in own], self.token_budget):
                chosen = [own[i] for i in batch]
                for i, values in zip(chosen, self._edges(cache, [trees[i] for i in chosen], chain), strict=True):
                    edges[i][trees[i].before >= 0] = values
        return [np.array([values[p].sum() for p in t.paths]) for t, values in zip(trees, edges, strict=True)]

    def _edges(self, cache: LayerCache, trees: list[TokenTree], chain: bool) -> list[np.ndarray]:
        """For each tree the log-probability of its wanted tokens that a fed node precedes, float64."""
        positions, seen = (None, None) if chain else self._shape(trees)
        hidden, _ = self._forward([tree.fed for tree in trees], cache, positions=positions, seen=seen)
        inner = [tree.before >= 0 for tree in trees]
        row = np.repeat(np.arange(len(trees)), [mask.sum() for mask in inner])
        before = np.concatenate([tree.before[mask] for tree, mask in zip(trees, inner, strict=True)])
        target = np.concatenate([tree.target[mask] for tree, mask in zip(trees, inner, strict=True)])
        states = hidden[torch.from_numpy(row).to(self.device), torch.from_numpy(before).to(self.device)]
        values = self._log_probs(states, torch.from_numpy(target).to(self.device), self.temperature)
        return np.split(values.double().cpu().numpy(), np.cumsum([mask.sum() for mask in inner])[:-1])

    def _shape(self, trees: list[TokenTree]) -> tuple[Tensor, Tensor]:
        """Each fed node's position after the prompt (rows, longest), and the nodes that it attends to (rows, longest,
        longest); padding attends to itself."""
        longest = max(len(tree.fed) for tree in trees)
        positions, seen = (
            np.zeros((len(trees), longest), np.int64),
            np.tile(np.eye(longest, dtype=bool), (len(trees), 1, 1)),
        )
        for row, tree in enumerate(trees):
            positions[row, : len(tree.fed)] = tree.depth
            seen[row, : len(tree.fed), : len(tree.fed)] = tree.seen()
        return torch.from_numpy(positions).to(self.device), torch.from_numpy(seen).to(self.device)

    def progress(self) -> Progress:
        """A mark for each batch of tokens; busy while a matrix is computed. Any thread may ask."""
        return self._marks.seen(self._working)

    def _unique_matrix(
        self, columns: list[np.ndarray], samples: list[np.ndarray], needed: np.ndarray, shared: int
    ) -> np.ndarray:
        """L (num_samples, num_columns) of distinct rows, NaN for pairs not needed; `shared`: as in `_prefilled`."""
        result = np.full(needed.shape, np.nan)
        whole = token_batches([len(z) - 1 for z in samples], self.token_budget) if needed.all() else None
        for j, cache, last in self._prefilled(columns, shared):
            chosen = np.flatnonzero(needed[:, j])
            if len(chosen):
                rows = [samples[s] for s in chosen]
                batches = whole or token_batches([len(z) - 1 for z in rows], self.token_budget)
                result[chosen, j] = self._first_log_probs(last, rows) + self._rest_sums(cache, rows, batches)
        return result

    @torch.inference_mode()
    def token_log_probs(self, prompt: np.ndarray, reasoning: np.ndarray, temperature: float) -> np.ndarray:
        """Log-probability of each token of one reasoning, (num_tokens,) float32, nats, at the given temperature."""
        ids = np.concatenate([prompt, reasoning]).astype(np.int64)
        hidden, _ = self._forward([ids[:-1]], None)
        targets = torch.from_numpy(ids[len(prompt) :]).to(self.device)
        return self._log_probs(hidden[0, len(prompt) - 1 :], targets, temperature).cpu().numpy()

    def _prefilled(self, prompts: list[np.ndarray], shared: int) -> Iterator[tuple[int, LayerCache, Tensor]]:
        """For each prompt its index, its keys and values, and its last hidden state (width,). Memory holds one batch at
        a time.

        All prompts have the same content in their first `shared` tokens.
        """
        base = self._forward([prompts[0][:shared]], None, capture=True)[1] if shared else None
        common = [(key[0], value[0]) for key, value in base.captured] if base else None
        for batch in token_batches([len(x) for x in prompts], self.token_budget):
            hidden, seen = self._forward([prompts[j][shared:] for j in batch], common, capture=True)
            for row, j in enumerate(batch):
                size = len(prompts[j]) - shared
                own = [(key[row, :, :size], value[row, :, :size]) for key, value in seen.captured]
                yield int(j), _joined(common, own), hidden[row, size - 1]

    def _forward(
        self,
        rows: list[np.ndarray],
        prefix: LayerCache | None,
        capture: bool = False,
        positions: Tensor | None = None,
        seen: Tensor | None = None,
    ) -> tuple[Tensor, PrefixContext]:
        """Hidden states (rows, longest, width) of rows that continue the shared prefix, padded on the right.
        `positions`, `seen`: of trees (`_shape`); without them a row is a chain."""
        longest, start = max(len(row) for row in rows), prefix[0][0].shape[1] if prefix else 0
        ids = np.zeros((len(rows), longest), dtype=np.int64)
        for padded, row in zip(ids, rows, strict=True):
            padded[: len(row)] = row
        context = PrefixContext(prefix, capture, seen)
        self.num_forwarded += ids.size
        if positions is None:
            positions = torch.arange(longest, device=self.device).unsqueeze(0)
        out = self.model.base_model(
            input_ids=torch.from_numpy(ids).to(self.device),
            position_ids=start + positions,
            use_cache=False,
            shared_prefix=context,
        )
        self._marks.add()
        return out.last_hidden_state, context

    def _first_log_probs(self, last: Tensor, samples: list[np.ndarray]) -> np.ndarray:
        """(num_samples,) float64: log p of each sample's first token after the prompt whose last state is `last`."""
        log_probs = (self._logits(last).float() / self.temperature).log_softmax(-1)
        return log_probs.double().cpu().numpy()[[z[0] for z in samples]]

    def _rest_sums(self, cache: LayerCache, samples: list[np.ndarray], batches: list[np.ndarray]) -> np.ndarray:
        """(num_samples,) float64: log p of each sample's tokens after the first, summed."""
        sums = np.zeros(len(samples))
        for batch in batches:
            batch = batch[[len(samples[s]) > 1 for s in batch]]
            if len(batch):
                sums[batch] = self._batch_sums(cache, [samples[s] for s in batch])
        return sums

    def _batch_sums(self, cache: LayerCache, rows: list[np.ndarray]) -> np.ndarray:
        hidden, _ = self._forward([row[:-1] for row in rows], cache)
        lengths = torch.tensor([len(row) - 1 for row in rows], device=self.device)
        valid = torch.arange(hidden.shape[1], device=self.device) < lengths.unsqueeze(1)
        targets = torch.from_numpy(np.concatenate([row[1:] for row in rows])).to(self.device)
        log_probs = self._log_probs(hidden[valid], targets, self.temperature).double()
        owner = torch.repeat_interleave(torch.arange(len(rows), device=self.device), lengths)
        return log_probs.new_zeros(len(rows)).index_add(0, owner, log_probs).cpu().numpy()

    def _log_probs(self, hidden: Tensor, targets: Tensor, temperature: float) -> Tensor:
        """(num_tokens,) float32 log-softmax at the targets, in blocks that keep the logits within MAX_LOGITS."""
        size = max(1, MAX_LOGITS[self.device.type] // self.model.config.vocab_size)
        blocks = zip(hidden.split(size), targets.split(size), strict=True)
        return torch.cat([_at(self._logits(states), wanted, temperature) for states, wanted in blocks])

    def _logits(self, hidden: Tensor) -> Tensor:
        head = self.model.get_output_embeddings()
        assert head is not None, "a causal language model has an output head"
        return head(hidden)

    def _refuse_bad_rows(self, prompts: Sequence[np.ndarray], reasonings: Sequence[np.ndarray]) -> None:
        shortest = min((len(row) for row in (*prompts, *reasonings)), default=0)
        if not prompts or not reasonings or shortest == 0:
            raise ValueError(
                f"cross-scoring needs prompts and reasonings of at least one token; got {len(prompts)} prompts, "
                f"{len(reasonings)} reasonings, the shortest of {shortest} tokens"
            )
        longest = max(len(x) for x in prompts) + max(len(z) for z in reasonings)
        if longest > self.context_length:
            raise ValueError(
                f"prompt and reasoning take {longest} tokens; the model's context is {self.context_length}"
            )

    def _refuse_bad_paths(self, prompts: Sequence[np.ndarray], rows: Sequence[Sequence[Sequence[Path]]]) -> None:
        paths = [(len(prompt), path) for prompt, own in zip(prompts, rows, strict=True) for row in own for path in row]
        if not paths or min(min(size, len(path.ids) - path.start) for size, path in paths) < 1:
            raise ValueError(f"{len(paths)} paths after {len(prompts)} prompts; each needs at least one token")
        longest = max(size + len(path.ids) for size, path in paths)
        if longest > self.context_length:
            raise ValueError(f"prompt and path take {longest} tokens; the model's context is {self.context_length}")

    @torch.inference_mode()
    def _check(self, plain: Tensor) -> None:
        """Compares shared-prefix attention with the model's own forward on the probe of `_plain_log_probs`."""
        ids = _probe_ids(self.model)
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


def _at(logits: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """(num_tokens,) float32 log-softmax of the logits (num_tokens, vocab_size), which may be overwritten, at the
    targets."""
    if logits.is_cuda and temperature == 1:  # one kernel that reads what the product wrote
        return logits.log_softmax(-1, dtype=torch.float32).gather(1, targets.unsqueeze(1)).squeeze(1)
    logits = logits.float().div_(temperature)
    own, top = logits.gather(1, targets.unsqueeze(1)).squeeze(1), logits.amax(-1)
    return own - top - logits.sub_(top.unsqueeze(1)).exp_().sum(-1).log()  # in place: half the time


def _joined(common: LayerCache | None, own: LayerCache) -> LayerCache:
    """Keys and values of the common prefix and of the rest of a prompt, one contiguous pair per layer."""
    if common is None:
        return own
    return [(torch.cat([a, c], 1), torch.cat([b, d], 1)) for (a, b), (c, d) in zip(common, own, strict=True)]


def _probe_ids(model: PreTrainedModel) -> np.ndarray:
    return (np.arange(16, dtype=np.int64) * 7 + 3) % model.config.vocab_size


@torch.inference_mode()
def _plain_log_probs(model: PreTrainedModel) -> Tensor:
    """The model's own log-probabilities (15,) of the probe's tokens 1.., before its attention is replaced."""
    ids = torch.from_numpy(_probe_ids(model)).to(next(model.parameters()).device)
    logits = model.eval()(input_ids=ids.unsqueeze(0), use_cache=False).logits[0, :-1].float()
    return logits.log_softmax(-1).gather(1, ids[1:].unsqueeze(1)).squeeze(1)


def _refuse_other_attention(model: PreTrainedModel) -> None:
    """Raises ValueError for layers with a sliding window or a recurrent state: they do not keep the keys and values of
    the whole prompt, so these cannot be shared."""
    settings = model.config.get_text_config().to_dict()
    layers = set(settings.get("layer_types") or ()) - {"full_attention"}
    windowed = settings.get("sliding_window") is not None
    softcap = settings.get("final_logit_softcapping") is not None
    if layers or windowed or softcap:
        raise ValueError(
            f"model_type={model.config.model_type} cannot be cross-scored: it needs full attention in every layer and "
            f"plain logits, but has layer types {sorted(layers)}, sliding_window={settings.get('sliding_window')}, "
            f"final_logit_softcapping={settings.get('final_logit_softcapping')}; set scorer.enabled=false for it"
        )


def load_arrays(model: PreTrainedModel, arrays: Mapping[str, np.ndarray], bfloat16_names: frozenset[str]) -> None:
    """Copies named arrays into the model's parameters and buffers; bfloat16 arrays are passed as uint16.

    Raises RuntimeError, and copies nothing, if an array is missing, unknown or of another shape. An array that is tied
    to another parameter (the output head of a tied model) may be missing.
    """
    targets = model.state_dict()
    needed = dict(model.named_parameters())
    missing, unknown = sorted(needed.keys() - arrays.keys()), sorted(arrays.keys() - targets.keys())
    shapes = [name for name in arrays.keys() & targets.keys() if arrays[name].shape != tuple(targets[name].shape)]
    if missing or unknown or shapes:
        raise RuntimeError(
            f"weights do not fit the scorer's {model.config.model_type}: missing {missing[:3]} ({len(missing)}), "
            f"unknown {unknown[:3]} ({len(unknown)}), other shape {sorted(shapes)[:3]} ({len(shapes)})"
        )
    with torch.no_grad():
        for name, array in arrays.items():
            tensor = torch.from_numpy(np.array(array))
            targets[name].copy_(tensor.view(torch.bfloat16) if name in bfloat16_names else tensor)
