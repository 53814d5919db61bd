import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.nn.attention import flex_attention as flex
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen3Config

from squelch.kit.packed import attention
from squelch.kit.packed.attention import TILE, block_mask, mask_rule, packed_attention, plain_attention
from squelch.kit.packed.layout import Layout
from squelch.kit.packed.packing import pack
from squelch.kit.process import compiled
from squelch.learner.batching import Row, collate, to_rows
from squelch.learner.config import LearnerConfig, ObjectiveConfig
from squelch.learner.kernels import head
from squelch.learner.kernels.choice import KERNELS
from squelch.learner.objective.components import StepSize
from squelch.learner.objective.losses import TokenBatch, policy_loss, sequences_of, token_weights
from squelch.learner.policy.model import Policy
from squelch.learner.tensors import inputs_of
from tests.kit.packed.test_packing import trees
from tests.learner.models import VOCABULARY, load_model, make_groups, make_model
from tests.learner.plain import plain_gradients, plain_model, plain_scores

CPU = torch.device("cpu")
ATTENTIONS = {"fast": packed_attention, "plain": plain_attention}
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.1,
}
CONFIGS = {
    "llama, head of its own": LlamaConfig(**SMALL, tie_word_embeddings=False),
    "qwen3, heads of another size": Qwen3Config(**SMALL, head_dim=16),
    "mistral, a window shorter than the rows": MistralConfig(**SMALL, sliding_window=12),
}


def relative(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).norm() / other.norm())


def test_the_setting_allows_the_tables_entries() -> None:
    assert get_args(LearnerConfig.model_fields["kernels"].annotation) == tuple(KERNELS)


@pytest.mark.parametrize("kernels", KERNELS)
@settings(deadline=None, max_examples=30)
@given(trees(), st.sampled_from([(4, 4), (4, 2), (3, 1)]), st.sampled_from([8, 5]), st.sampled_from([None, 7]))
@example([np.arange(8)], (4, 2), 8, 7)  # a row that is one token longer than the window
def test_attention_and_its_gradients_are_those_of_a_dense_mask(
    kernels: str, rows: list[np.ndarray], heads: tuple[int, int], value_size: int, window: int | None
) -> None:
    layout = Layout.of(pack(rows), CPU)
    size = len(layout.ends)
    generator = torch.Generator().manual_seed(size)
    q, k, v = (
        torch.randn(1, size, n, width, generator=generator).transpose(1, 2).requires_grad_()
        for n, width in ((heads[0], 8), (heads[1], 8), (heads[1], value_size))
    )
    out, _ = ATTENTIONS[kernels](torch.nn.Identity(), q, k, v, None, layout=layout, sliding_window=window)
    where = torch.arange(size)
    mask = layout.sees(where[:, None], where, window or 0)
    wanted = scaled_dot_product_attention(q, k, v, mask, enable_gqa=True).transpose(1, 2)
    assert torch.allclose(out, wanted, atol=1e-5)
    up = torch.randn(out.shape, generator=generator)
    found, plain = (torch.autograd.grad(x, (q, k, v), up) for x in (out, wanted))
    assert all(torch.allclose(one, other, atol=1e-4) for one, other in zip(found, plain, strict=True))


def test_the_rule_for_a_gpu_is_the_layouts() -> None:
    rows = [np.array([*range(40), 50 + i, *range(i)]) for i in range(4)]
    forest = pack(rows)
    layout = Layout.of(forest, CPU)
    where = torch.arange(forest.num_tokens)
    rule = mask_rule(layout)(torch.tensor(0), torch.tensor(0), where[:, None], where)
    for place in forest.places:
        others = np.setdiff1d(np.arange(forest.num_tokens), place)
        assert rule[place][:, place].equal(torch.ones(len(place), len(place), dtype=torch.bool).tril())
        assert not rule[place][:, others].any()
    near = mask_rule(layout, 5)(torch.tensor(0), torch.tensor(0), where[:, None], where)
    assert near.sum(1).max() == 5 and (near & rule).equal(near)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=6), st.integers(0, 300), st.sampled_from([0, 1, 90]))
def test_tiles_for_a_gpu_are_those_of_all_pairs(lengths: list[int], opening: int, window: int) -> None:
    rows = [np.array([*range(opening), *(1000 * (i + 1) + np.arange(length))]) for i, length in enumerate(lengths)]
    layout = Layout.of(pack(rows), CPU)
    size = len(layout.ends)
    found = block_mask(layout, window)
    where = torch.arange(size)
    seen = torch.zeros(-(-size // TILE) * TILE, -(-size // TILE) * TILE)
    seen[:size, :size] = layout.sees(where[:, None], where, window).float()
    share = seen.view(len(seen) // TILE, TILE, -1, TILE).mean((1, 3))
    partly, whole = (
        flex._ordered_to_dense(number, columns, columns.shape[-1])[0, 0].bool()
        for number, columns in (
            (found.kv_num_blocks, found.kv_indices),
            (found.full_kv_num_blocks, found.full_kv_indices),
        )
    )
    assert not (partly & whole).any()
    assert (share[whole] == 1).all() and (share[~(partly | whole)] == 0).all()
    if not window:
        assert whole.equal(share == 1) and partly.equal((share > 0) & (share < 1))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("window", [0, 5])
@pytest.mark.parametrize(("heads", "size"), [((4, 4), 16), ((4, 2), 16), ((4, 2), 8)])
def test_the_way_for_a_gpu_gives_what_blocks_give(
    monkeypatch: pytest.MonkeyPatch, heads: tuple[int, int], window: int, size: int
) -> None:
    # FlexAttention's dense form, forward and backward, stands for its kernel; PyTorch refuses it gradients on CPU by a
    # check of its own, and has them.
    def kernel(query: torch.Tensor, *others: torch.Tensor, **rest: object) -> object:
        assert query.shape[-1] >= attention.LEAST_HEAD, "the kernel refuses such heads"
        assert rest["kernel_options"] == {"BACKEND": "TRITON"}, "the kernel for few tokens refuses many heads"
        return flex.flex_attention(query, *others, **rest)

    monkeypatch.setattr(attention, "_flex", lambda: kernel)
    monkeypatch.setattr(flex, "_validate_device", lambda *tensors: None)
    layout = Layout.of(pack([np.array([*range(150), 50 + i, *range(10 * i)]) for i in range(4)]), CPU)
    generator = torch.Generator().manual_seed(window)
    q, k, v = (
        torch.randn(1, n, len(layout.ends), size, generator=generator).requires_grad_()
        for n in (heads[0], heads[1], heads[1])
    )
    found, wanted = (way(q, k, v, 0.3, layout, window) for way in (attention._on_cuda, attention._on_cpu))
    assert torch.allclose(found, wanted, atol=1e-5)
    up = torch.randn(wanted.shape, generator=generator)
    gradients = [torch.autograd.grad(out, (q, k, v), up) for out in (found, wanted)]
    assert all(torch.allclose(one, other, atol=1e-4) for one, other in zip(*gradients, strict=True))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@torch._dynamo.config.patch(recompile_limit=8)  # torch's own, which the kernel raises
def test_no_layout_of_a_run_is_one_too_many_for_the_compiled_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond its limit of compiled forms, torch would compute the dense form. The backend here calls it on purpose."""
    ran: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: list) -> Callable:
        return lambda *values: ran.append(graph) or graph.forward(*values)

    monkeypatch.setattr(flex, "_validate_device", lambda *tensors: None)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    monkeypatch.setattr(attention, "_flex", attention._flex.__wrapped__)
    kernel = attention._flex()
    monkeypatch.setattr(attention, "_flex", lambda: kernel)
    torch._dynamo.reset()
    lengths = ([300, 310], [200, 20, 30], [40], [1])  # several tiles, also of another number; one tile; an empty rank's
    for calls, (grad, window, rows) in enumerate(itertools.product((False, True), (0, 30), lengths), start=1):
        layout = Layout.of(pack([np.arange(length) + 1000 * i for i, length in enumerate(rows)]), CPU)
        q, k, v = (torch.randn(1, n, len(layout.ends), 16, requires_grad=grad) for n in (4, 2, 2))
        with torch.set_grad_enabled(grad):
            attention._on_cuda(q, k, v, 0.3, layout, window if window < layout.longest else 0)
        assert len(ran) == calls, (rows, window, grad)
    assert 8 < len(set(map(id, ran))) < compiled.VARIANTS / 4
    torch._dynamo.reset()


def packed_gradients(policy: Policy, rows: list[Row], objective: ObjectiveConfig, temperature: float) -> tuple:
    """Loss and gradients by name, as the trainer computes them on one rank without FSDP."""
    policy.zero_grad()
    micro = collate(rows)
    log_probs, entropies = policy(*inputs_of(micro, CPU), temperature, objective.entropy_coefficient > 0)
    rollout = torch.from_numpy(micro.rollout)
    lengths = torch.from_numpy(micro.lengths)
    weights = token_weights(lengths, objective.aggregation, StepSize(len(rows), int(lengths.sum())))
    batch = TokenBatch(rollout, rollout, torch.from_numpy(micro.advantages), weights, sequences_of(lengths))
    loss = policy_loss(log_probs, entropies, batch, objective, 1.0).loss
    loss.backward()
    return loss.item(), {name: p.grad.clone() for name, p in policy.model.named_parameters()}


def random_rows(trajectories: list[np.ndarray], seed: int) -> list[Row]:
    """Rows of the given tokens with about half of them sampled, log-probabilities off policy, random advantages."""
    rng = np.random.default_rng(seed)
    rows = []
    for i, ids in enumerate(trajectories):
        positions = np.flatnonzero(rng.random(len(ids)) < 0.5)
        positions = positions if len(positions) else np.array([len(ids) - 1])
        targets = rng.integers(0, VOCABULARY, len(positions))
        log_probs = (-4 + 0.5 * rng.standard_normal(len(positions))).astype(np.float32)
        rows.append(Row("g", i, ids.astype(np.int32), positions, targets, log_probs, float(rng.standard_normal())))
    return rows


@pytest.fixture(scope="module", params=KERNELS)
def pair(model_dir: Path, request: pytest.FixtureRequest) -> tuple[Policy, torch.nn.Module]:
    return Policy(load_model(model_dir, request.param), kernels=request.param), plain_model(model_dir)


@settings(deadline=None, max_examples=12)
@given(trees(), st.booleans(), st.sampled_from([0.5, 1.0]), st.sampled_from([0.0, 0.01]))
def test_loss_and_every_gradient_are_those_of_the_plain_padded_computation(
    pair: tuple[Policy, torch.nn.Module],
    trajectories: list[np.ndarray],
    on_policy: bool,
    temperature: float,
    coefficient: float,
) -> None:
    policy, model = pair
    rows = random_rows(trajectories, len(trajectories[0]))
    if on_policy:
        with torch.no_grad():
            own = plain_scores(model, rows, temperature)[0].split([row.num_sampled for row in rows])
        rows = [Row(**{**vars(row), "log_probs": part.numpy()}) for row, part in zip(rows, own, strict=True)]
    objective = ObjectiveConfig(entropy_coefficient=coefficient)
    loss, gradients = packed_gradients(policy, rows, objective, temperature)
    wanted_loss, wanted = plain_gradients(model, rows, objective, temperature)
    assert abs(loss - wanted_loss) < 1e-5 * max(1.0, abs(wanted_loss))
    whole = torch.cat([gradients[name].flatten() for name in wanted])
    if float(whole.norm()) > 1e-5:
        assert relative(whole, torch.cat([g.flatten() for g in wanted.values()])) < 1e-5


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", CONFIGS)
def test_other_architectures_have_the_gradients_of_their_plain_computation(
    name: str, kernels: str, tmp_path: Path
) -> None:
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(CONFIGS[name]).save_pretrained(tmp_path)
    policy, model = Policy(load_model(tmp_path, kernels), kernels=kernels), plain_model(tmp_path)
    rows = to_rows(make_groups(2, turns=3), ObjectiveConfig())
    objective = ObjectiveConfig(entropy_coefficient=0.01)
    loss, gradients = packed_gradients(policy, rows, objective, 1.0)
    wanted_loss, wanted = plain_gradients(model, rows, objective)
    assert abs(loss - wanted_loss) < 1e-5
    for parameter, gradient in wanted.items():
        assert relative(gradients[parameter], gradient) < 1e-5, parameter


@pytest.mark.parametrize("attend", ATTENTIONS.values())
def test_what_packed_rows_cannot_have_is_refused_by_name(attend: Callable[..., object]) -> None:
    q = torch.zeros(1, 1, 1, 8)
    layout = Layout.of(pack([np.zeros(1, dtype=np.int64)]), CPU)
    for rest, what in (({"softcap": 30.0}, "softcap"), ({"s_aux": q}, "s_aux"), ({"dropout": 0.1}, "dropout")):
        with pytest.raises(ValueError, match=f"Identity asks for {what}"):
            attend(torch.nn.Identity(), q, q, q, None, layout=layout, **rest)
    with pytest.raises(ValueError, match="a plain batch"):
        attend(torch.nn.Identity(), q, q, q, None)


@pytest.mark.parametrize(("words", "logits"), [(61, 61 * 7), (10, 50), (61, 23 * 20), (1 << 13, 1 << 20)])
@pytest.mark.parametrize("entropic", [False, True])
@pytest.mark.parametrize("kernels", [*KERNELS, "fast, as on a GPU"])
def test_the_head_has_the_values_and_gradients_of_log_softmax(
    monkeypatch: pytest.MonkeyPatch, words: int, logits: int, entropic: bool, kernels: str
) -> None:
    if kernels not in KERNELS:  # traced as for a GPU, and run operator by operator
        monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
        gpu = head._passes.__wrapped__("cuda")
        monkeypatch.setattr(head, "_passes", lambda device: gpu)
        kernels = "fast"
    monkeypatch.setattr(head, "TILE_VOCABULARY", words)
    monkeypatch.setattr(head, "LEAST_VOCABULARY", 10)
    monkeypatch.setitem(head.TILE_LOGITS, "cpu", logits)
    torch.manual_seed(0)
    hidden, weight, bias = (torch.randn(*s, dtype=torch.float32, requires_grad=True) for s in ((23, 8), (61, 8), (61,)))
    targets = torch.randint(0, VOCABULARY, (23,))
    log_probs, entropies = KERNELS[kernels].log_probabilities(hidden, weight, bias, targets, 0.7, entropic)
    assert entropies.requires_grad == entropic
    log_p = ((hidden @ weight.t() + bias) / 0.7).log_softmax(-1)
    wanted = log_p.gather(1, targets[:, None]).squeeze(1), -(log_p.exp() * log_p).sum(-1)
    assert torch.allclose(log_probs, wanted[0], atol=1e-5) and torch.allclose(entropies, wanted[1], atol=1e-5)
    up = torch.randn(2, 23)
    loss, wanted_loss = ((a * up[0]).sum() + entropic * (b * up[1]).sum() for a, b in ((log_probs, entropies), wanted))
    inputs = (hidden, weight, bias)
    for one, other in zip(torch.autograd.grad(loss, inputs), torch.autograd.grad(wanted_loss, inputs), strict=True):
        assert relative(one, other) < 1e-5


def test_a_tile_of_the_head_holds_every_token_if_a_part_of_the_vocabulary_can_be_small_enough() -> None:
    assert head._tile(2000, 49_152, "cpu") == (2048, 2048)
    assert head._tile(300, 49_152, "cpu") == (512, 8192)
    assert head._tile(2000, 192, "cpu")[1] == 192
    for tokens in (0, 1, 100_000):
        many, words = head._tile(tokens, 151_936, "cpu")
        assert many * words <= head.TILE_LOGITS["cpu"] and words >= head.LEAST_VOCABULARY


@pytest.mark.parametrize("kernels", KERNELS)
def test_linear_layers_are_x_w_transposed_plus_b(kernels: str) -> None:
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(24, 40), torch.randn(2, 1100, 24, requires_grad=True)
    KERNELS[kernels].replace_layers(layer)
    assert (type(layer) is torch.nn.Linear) == (kernels == "plain")
    up = torch.randn(2, 1100, 40)
    inputs = (x, layer.weight, layer.bias)
    own = x @ layer.weight.t() + layer.bias
    assert torch.allclose(layer(x), own, atol=1e-5)
    found, wanted = torch.autograd.grad(layer(x), inputs, up), torch.autograd.grad(own, inputs, up)
    assert all(relative(one, other) < 1e-5 for one, other in zip(found, wanted, strict=True))


def test_the_heads_memory_does_not_hold_tokens_times_vocabulary(tmp_path: Path) -> None:
    model = load_model(make_model(tmp_path, vocabulary=50_000))
    rows = random_rows([np.arange(200) % VOCABULARY], 0)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.numel()) or x, lambda x: x):
        Policy(model)(*inputs_of(collate(rows), CPU), 1.0, True)
    assert max(saved) == 50_000 * 32  # the output matrix itself
