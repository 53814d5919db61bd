"""The score matrix equals one plain forward for each pair, in whatever batches it is computed."""

import copy
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from squelch.kit.process.private_operators import private_operator
from squelch.kit.scoring import cross_scoring, prefix_attention
from squelch.kit.scoring.cross_scoring import CrossScorer
from squelch.kit.scoring.models import load_arrays
from squelch.kit.scoring.passes import common_prefix_length, token_batches
from squelch.kit.scoring.token_trees import Path, tree_of

VOCABULARY = 61
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


def sharp(model: PreTrainedModel) -> PreTrainedModel:
    """Larger weights, so that what is attended to matters: fresh ones are nearly uniform whatever the prompt."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0 if parameter.dim() > 1 else 1.0)
    return model.eval()


def qwen2() -> PreTrainedModel:
    torch.manual_seed(0)
    return sharp(Qwen2ForCausalLM(Qwen2Config(**SMALL, tie_word_embeddings=True)))


def rows(rng: np.random.Generator, lengths: list[int], start: list[int] | None = None) -> list[np.ndarray]:
    return [np.concatenate([start or [], rng.integers(0, VOCABULARY, n)]).astype(np.int32) for n in lengths]


@torch.inference_mode()
def one_by_one(
    model: PreTrainedModel, prompts: list[np.ndarray], reasonings: list[np.ndarray], temperature: float
) -> np.ndarray:
    """The definition: one full forward for each pair, summed over the tokens of Z."""
    result = np.empty((len(reasonings), len(prompts)))
    for s, z in enumerate(reasonings):
        for j, x in enumerate(prompts):
            ids = torch.from_numpy(np.concatenate([x, z]).astype(np.int64))
            log_probs = (model(ids.unsqueeze(0)).logits[0].float() / temperature).log_softmax(-1)
            result[s, j] = log_probs[len(x) - 1 : -1].gather(1, ids[len(x) :, None]).double().sum()
    return result


def per_token_error(found: np.ndarray, expected: np.ndarray, reasonings: list[np.ndarray]) -> float:
    return float((np.abs(found - expected) / np.array([len(z) for z in reasonings])[:, None]).max())


@pytest.fixture
def without_flash(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A torch without the CPU flash kernel."""
    monkeypatch.setattr(prefix_attention, "CPU_FLASH", "ops.aten._scaled_dot_product_flash_attention_for_none")
    private_operator.cache_clear()
    yield
    private_operator.cache_clear()


@pytest.mark.parametrize("form", ["fast", "fast without the kernel", "plain"])
@pytest.mark.parametrize("start", [[], [5, 6, 7, 8, 9]])
@pytest.mark.parametrize("budget", [1, 40, 4096])
def test_matrix_equals_one_forward_for_each_pair(
    budget: int, start: list[int], form: str, request: pytest.FixtureRequest
) -> None:
    if form == "fast without the kernel":
        request.getfixturevalue("without_flash")
    model, rng = qwen2(), np.random.default_rng(1)
    prompts, reasonings = rows(rng, [9, 3, 17, 4, 9], start), rows(rng, [1, 2, 11, 5, 1, 8])
    expected = one_by_one(copy.deepcopy(model), prompts, reasonings, 0.7)
    found = CrossScorer(model, budget, 0.7, form.split()[0]).matrix(prompts, reasonings)
    assert expected.std(axis=1).min() > 0.1, "the prompts must matter for this test to be able to fail"
    assert per_token_error(found, expected, reasonings) < 1e-4


def branching(rng: np.random.Generator, reasonings: list[np.ndarray], answers: list[np.ndarray]) -> list[list[Path]]:
    """A row for each reasoning: itself, every answer after it, and the first answer after each half of it."""
    found = []
    for z in reasonings:
        cuts = [len(z) // 2, 0]
        own = [Path(z), *(Path(np.concatenate([z, a]), len(z)) for a in answers)]
        found.append([*own, *(Path(np.concatenate([z[:cut], answers[0]]), cut) for cut in cuts)])
    chain = np.concatenate([reasonings[0], answers[0]])
    return [*found, [Path(chain, len(reasonings[0])), Path(reasonings[0])], [Path(answers[1][:1])]]


@pytest.mark.parametrize("form", ["fast", "fast without the kernel", "plain"])
@pytest.mark.parametrize("budget", [1, 40, 4096])
def test_answers_after_reasonings_equal_one_plain_forward_each(
    budget: int, form: str, request: pytest.FixtureRequest
) -> None:
    if form == "fast without the kernel":
        request.getfixturevalue("without_flash")
    model, rng = qwen2(), np.random.default_rng(4)
    prompts, reasonings = rows(rng, [9, 3, 12], [5, 6, 7]), rows(rng, [1, 6, 11])
    answers = [*rows(rng, [4, 2, 5, 1], [8, 9]), np.array([8])]
    plain = copy.deepcopy(model)
    wanted = [branching(rng, reasonings, answers), branching(rng, reasonings[::-1], answers), []]
    expected = [
        [one_by_one(plain, [np.append(x, p.ids[: p.start])], [p.ids[p.start :]], 0.7)[0, 0] for p in row]
        for x, own in zip(prompts, wanted, strict=True)
        for row in own
    ]
    found = CrossScorer(model, budget, 0.7, form.split()[0]).path_sums(prompts, wanted)
    assert np.std(np.concatenate(expected)) > 1.0
    for values, truth in zip([row for own in found for row in own], expected, strict=True):
        assert values == pytest.approx(truth, abs=1e-4 * 16)


def test_what_paths_share_is_fed_once_and_their_last_tokens_are_not_fed() -> None:
    z, first, second = np.array([1, 2, 3]), np.array([7, 8, 9]), np.array([7, 8, 6, 5])
    tree = tree_of([Path(z), Path(np.append(z, first), 3), Path(np.append(z, second), 3)])
    assert tree.fed.tolist() == [1, 2, 3, 7, 8, 6] and tree.depth.tolist() == [0, 1, 2, 3, 4, 5]
    assert [tree.target[edges].tolist() for edges in tree.paths] == [[1, 2, 3], [7, 8, 9], [7, 8, 6, 5]]
    assert len(tree.target) == 8 and tree.is_chain
    parted = tree_of([Path(np.array([1, 2, 3])), Path(np.array([1, 4, 5]))])
    assert not parted.is_chain and parted.seen().tolist() == [[1, 0, 0], [1, 1, 0], [1, 0, 1]]


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=6), st.integers(0, 5)), min_size=1, max_size=6)
)
def test_a_tree_holds_each_path_in_order(drawn: list[tuple[list[int], int]]) -> None:
    paths = [Path(np.array(ids), min(start, len(ids) - 1)) for ids, start in drawn]
    tree = tree_of(paths)
    assert (tree.parent < np.arange(len(tree.parent))).all()
    for path, edges in zip(paths, tree.paths, strict=True):
        assert tree.target[edges].tolist() == path.ids[path.start :].tolist()
        ancestors, node = [], int(tree.before[edges[-1]])
        while node >= 0:
            ancestors.append(int(tree.fed[node]))
            node = int(tree.parent[node])
        assert ancestors[::-1] == path.ids[:-1].tolist()


def test_paths_that_are_empty_or_too_long_are_refused() -> None:
    scorer, prompt = CrossScorer(qwen2(), 64), np.arange(1, 9)
    with pytest.raises(ValueError, match="1 paths after 1 prompts; each needs at least one token"):
        scorer.path_sums([prompt], [[[Path(np.array([3]), 1)]]])
    with pytest.raises(ValueError, match="prompt and path take 129 tokens; the model's context is 128"):
        scorer.path_sums([prompt], [[[Path(np.ones(121, np.int64))]]])


def test_a_prompt_that_begins_another_and_a_prompt_of_one_token_are_scored() -> None:
    model = qwen2()
    prompts = [np.array([4]), np.array([4, 7]), np.array([4, 7, 9, 2])]
    reasonings = [np.array([3, 1, 2])]
    expected = one_by_one(copy.deepcopy(model), prompts, reasonings, 1.0)
    assert per_token_error(CrossScorer(model, 64).matrix(prompts, reasonings), expected, reasonings) < 1e-4


def test_equal_prompts_and_reasonings_are_computed_once_and_score_the_same() -> None:
    scorer, rng = CrossScorer(qwen2(), 4096), np.random.default_rng(2)
    prompts, reasonings = rows(rng, [8, 6]), rows(rng, [5, 7])
    scorer.matrix(prompts, reasonings)
    once = scorer.num_forwarded
    doubled = scorer.matrix([*prompts, *prompts], [*reasonings, *reasonings])
    assert scorer.num_forwarded - once <= once
    assert np.array_equal(doubled[:2, :2], doubled[2:, 2:])


@pytest.mark.parametrize("budget", [1, 4096])
def test_wanted_pairs_are_those_of_the_whole_matrix_at_fewer_tokens(budget: int) -> None:
    scorer, rng = CrossScorer(qwen2(), budget), np.random.default_rng(7)
    prompts, reasonings = rows(rng, [8, 6, 8, 12], [1, 2, 3]), rows(rng, [5, 7, 9, 1, 6])
    prompts.append(prompts[0])
    reasonings.append(reasonings[1])
    whole = scorer.matrix(prompts, reasonings)
    tokens = scorer.num_forwarded
    wanted = rng.random(whole.shape) < 0.3
    wanted[:, 3] = False
    part = scorer.matrix(prompts, reasonings, wanted)
    assert np.array_equal(np.isnan(part), ~wanted)
    assert np.abs(part - whole)[wanted].max() < 1e-4
    assert scorer.num_forwarded - tokens < tokens


def test_a_torch_without_the_flash_kernel_says_so_once(without_flash: None, caplog: pytest.LogCaptureFixture) -> None:
    scorer, rng = CrossScorer(qwen2(), 4096), np.random.default_rng(3)
    scorer.matrix(rows(rng, [4, 5]), rows(rng, [3, 7]))
    (said,) = [record.getMessage() for record in caplog.records if "torch.ops.aten" in record.getMessage()]
    assert "flash_attention_for_none: the scorer's attention stores its scores" in said


def test_queries_in_blocks_and_logits_in_blocks_change_nothing(
    monkeypatch: pytest.MonkeyPatch, without_flash: None
) -> None:
    rng = np.random.default_rng(3)
    prompts, reasonings = rows(rng, [20, 30], [1, 2, 3]), rows(rng, [12, 9, 15])
    whole = CrossScorer(qwen2(), 4096).matrix(prompts, reasonings)
    monkeypatch.setitem(prefix_attention.MAX_SCORES, "cpu", 700)
    monkeypatch.setitem(cross_scoring.MAX_LOGITS, "cpu", 4 * VOCABULARY)
    blocks = CrossScorer(qwen2(), 4096).matrix(prompts, reasonings)
    assert per_token_error(blocks, whole, reasonings) < 1e-5


@torch.inference_mode()
def sampled(model: PreTrainedModel, prompts: list[np.ndarray], draws: int, tokens: int) -> list[np.ndarray]:
    """`draws` continuations of `tokens` ids of each prompt, in the model's own words."""
    generator, found = torch.Generator().manual_seed(0), []
    for prompt in prompts:
        ids = torch.from_numpy(prompt.astype(np.int64)).expand(draws, -1)
        for _ in range(tokens):
            chances = model(ids).logits[:, -1].softmax(-1)
            ids = torch.cat([ids, torch.multinomial(chances, 1, generator=generator)], dim=1)
        found += list(ids[:, len(prompt) :].numpy())
    return found


@pytest.mark.slow
def test_rounding_biases_matched_and_mixture_alike() -> None:
    """In bfloat16 an entry is off by about 0.003 nats a token, but matched ones on average no more than the others."""
    model, rng = qwen2(), np.random.default_rng(8)
    with torch.no_grad():
        model.base_model.norm.weight.mul_(3.0)  # decided: what it samples then tells the prompts apart
    prompts = rows(rng, [12] * 16)
    reasonings = sampled(model, prompts, 6, 10)
    own = np.repeat(np.arange(16), 6)[:, None] == np.arange(16)
    exact = one_by_one(model, prompts, reasonings, 1.0) / 10
    rounded = CrossScorer(copy.deepcopy(model).to(torch.bfloat16), 4096).matrix(prompts, reasonings) / 10
    full = CrossScorer(model, 4096).matrix(prompts, reasonings) / 10
    assert exact[own].mean() - exact[~own].mean() > 0.5, "own prompts must matter for this test to be able to fail"
    for found, bound in ((full, 1e-6), (rounded, 1e-3)):
        off = found - exact
        assert abs(off[own].mean() - off[~own].mean()) < bound
    assert np.abs(rounded - exact).mean() > 2e-3


def test_another_architecture_with_full_attention_is_scored_alike() -> None:
    torch.manual_seed(1)
    model, rng = sharp(LlamaForCausalLM(LlamaConfig(**SMALL))), np.random.default_rng(4)
    prompts, reasonings = rows(rng, [7, 12]), rows(rng, [6, 3])
    expected = one_by_one(copy.deepcopy(model), prompts, reasonings, 1.3)
    assert per_token_error(CrossScorer(model, 64, 1.3).matrix(prompts, reasonings), expected, reasonings) < 1e-4


def test_token_log_probs_sum_to_the_matrix() -> None:
    scorer, rng = CrossScorer(qwen2(), 64, 0.5), np.random.default_rng(5)
    (prompt,), (reasoning,) = rows(rng, [7]), rows(rng, [9])
    single = scorer.token_log_probs(prompt, reasoning, 0.5)
    assert single.shape == (9,)
    assert abs(single.sum() - scorer.matrix([prompt], [reasoning])[0, 0]) < 1e-4 * 9


def test_a_model_with_windowed_layers_is_refused_by_name() -> None:
    config = Gemma2Config(**SMALL, head_dim=8, sliding_window=16)
    with pytest.raises(ValueError, match=r"gemma2.*sliding_attention"):
        CrossScorer(Gemma2ForCausalLM(config), 64)


def test_a_model_whose_probe_differs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_scoring, "plain_log_probs", lambda model: torch.zeros(15))
    with pytest.raises(ValueError, match="qwen2 cannot be cross-scored: shared-prefix attention differs"):
        CrossScorer(qwen2(), 64)


def test_empty_rows_and_rows_beyond_the_context_are_refused_with_the_numbers() -> None:
    scorer = CrossScorer(qwen2(), 64)
    with pytest.raises(ValueError, match="at least one token"):
        scorer.matrix([np.array([1])], [np.array([], dtype=np.int32)])
    with pytest.raises(ValueError, match="take 130 tokens; the model's context is 128"):
        scorer.matrix([np.ones(120, dtype=np.int32)], [np.ones(10, dtype=np.int32)])


@given(st.lists(st.integers(0, 90), max_size=60), st.integers(1, 300))
def test_batches_hold_every_row_once_and_stay_within_the_budget(lengths: list[int], budget: int) -> None:
    batches = token_batches(lengths, budget)
    assert sorted(np.concatenate([[], *batches]).tolist()) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= budget


def test_a_large_batch_holds_no_row_that_is_mostly_padding() -> None:
    batches = token_batches([100] * 10 + [10] * 200, 10_000)
    assert [len(batch) for batch in batches] == [10, 200]


@settings(max_examples=50)
@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=6))
def test_common_prefix_is_the_longest_that_leaves_each_row_a_token(lists: list[list[int]]) -> None:
    length = common_prefix_length([np.array(row) for row in lists])
    assert all(row[:length] == lists[0][:length] and len(row) > length for row in lists)
    longer = length + 1
    assert any(len(row) <= longer or row[:longer] != lists[0][:longer] for row in lists)


def arrays_of(model: PreTrainedModel) -> dict[str, np.ndarray]:
    return {name: parameter.detach().numpy().copy() for name, parameter in model.named_parameters()}


def test_loaded_weights_are_the_ones_that_score_head_included() -> None:
    model, other, rng = qwen2(), qwen2(), np.random.default_rng(6)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    prompts, reasonings = rows(rng, [7, 5]), rows(rng, [6, 3])
    scorer = CrossScorer(model, 64)
    load_arrays(scorer.model, arrays_of(other), frozenset())
    expected = one_by_one(other, prompts, reasonings, 1.0)
    assert per_token_error(scorer.matrix(prompts, reasonings), expected, reasonings) < 1e-4


def test_bfloat16_arrays_travel_as_uint16() -> None:
    model, name = qwen2(), "model.norm.weight"
    arrays = arrays_of(model)
    arrays[name] = torch.full((32,), 1.5, dtype=torch.bfloat16).view(torch.uint16).numpy()
    load_arrays(model, arrays, frozenset([name]))
    assert torch.equal(model.model.norm.weight, torch.full((32,), 1.5))


@pytest.mark.parametrize("damage", ["missing", "unknown", "shape"])
def test_weights_that_do_not_fit_change_nothing(damage: str) -> None:
    model = qwen2()
    before, arrays = arrays_of(model), {name: array + 1 for name, array in arrays_of(model).items()}
    if damage == "missing":
        del arrays["model.norm.weight"]
    elif damage == "unknown":
        arrays["model.extra"] = np.zeros(3, dtype=np.float32)
    else:
        arrays["model.norm.weight"] = np.zeros(3, dtype=np.float32)
    with pytest.raises(RuntimeError, match=r"model\.(norm\.weight|extra)"):
        load_arrays(model, arrays, frozenset())
    assert all(np.array_equal(array, before[name]) for name, array in arrays_of(model).items())
