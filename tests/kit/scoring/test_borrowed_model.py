"""A model that is scored while somebody trains it is given back as it was; one that cannot be scored is refused."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from squelch.kit.scoring.borrowed_model import borrowed, inner_model
from squelch.kit.scoring.cross_scoring import CrossScorer

SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
ROWS = [np.arange(3, 9), np.arange(20, 24)]


def llama(**changes: object) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SMALL, attention_dropout=0.2, attn_implementation="eager", **changes))


def scored(model: object) -> np.ndarray:
    with borrowed(model) as own:
        return CrossScorer(own, 256).matrix(ROWS, ROWS)


def trained(model: PreTrainedModel, steps: int, score_at: int) -> list[torch.Tensor]:
    """The parameters after some steps with dropout; before step `score_at` the model is scored."""
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(steps):
        ids = torch.randint(0, 61, (2, 12))
        if step == score_at:
            scored(model)
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_training_goes_on_to_the_bit_as_if_nothing_had_been_scored() -> None:
    one, other = llama().train(), llama().train()
    for with_scoring, without in zip(trained(one, 4, 2), trained(other, 4, -1), strict=True):
        assert torch.equal(with_scoring, without)


def test_mode_attention_dtype_gradients_hooks_and_random_states_are_as_before() -> None:
    model = llama().train().to(torch.bfloat16)
    model.model.layers[1].eval()  # one module in the other mode
    calls: list[int] = []
    hook = model.lm_head.register_forward_hook(lambda *_: calls.append(1))
    ids = torch.arange(8).unsqueeze(0)
    model(input_ids=ids, labels=ids).loss.backward()
    before = copy.deepcopy([parameter.grad for parameter in model.parameters()])
    modes, state = [module.training for module in model.modules()], torch.get_rng_state()
    with torch.autocast("cpu", torch.bfloat16):
        scored(model)
        assert torch.is_autocast_enabled("cpu")
    assert [module.training for module in model.modules()] == modes and not all(modes)
    assert model.config._attn_implementation == "eager" and not hasattr(model.config, "_attn_was_changed")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert all(torch.equal(a, b.grad) for a, b in zip(before, model.parameters(), strict=True))
    assert torch.equal(torch.get_rng_state(), state) and list(model.lm_head._forward_hooks) == [hook.id]


def test_a_model_is_given_back_after_an_error_too() -> None:
    model = llama().train()
    with pytest.raises(ValueError, match="at least one token"), borrowed(model) as own:
        CrossScorer(own, 256).matrix([], [])
    assert model.training and model.config._attn_implementation == "eager"


def test_wrappers_are_looked_through_and_an_adapter_stays_in_effect() -> None:
    plain = scored(llama())
    adapted = get_peft_model(llama(), LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False))
    alone, wrapped = scored(adapted), scored(torch.compile(adapted))
    assert np.array_equal(alone, wrapped) and np.abs(alone - plain).max() > 1e-4
    merged = scored(adapted.merge_and_unload())
    assert np.abs(merged - alone).max() < 1e-3


def test_the_autocast_that_accelerate_puts_around_forward_is_left_out_meanwhile() -> None:
    plain, model = scored(llama()), llama()

    def rounded(*words: object, **named: object) -> object:
        with torch.autocast("cpu", torch.bfloat16):
            return type(model).forward(model, *words, **named)

    model._original_forward, model.forward = model.forward, rounded  # type: ignore[method-assign]
    assert np.array_equal(scored(model), plain) and model.forward is rounded


def test_a_model_that_cannot_be_scored_on_one_rank_or_at_all_is_refused_by_name() -> None:
    sharded, partitioned = type("FullyShardedDataParallel", (), {})(), llama()
    with pytest.raises(ValueError, match="wrapped by FSDP: a forward needs all ranks"):
        inner_model(sharded)
    partitioned.lm_head.weight.ds_id = 0  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"DeepSpeed ZeRO-3 \(lm_head.weight\)"):
        inner_model(partitioned)
    with pytest.raises(ValueError, match="the model is a SimpleNamespace; a causal language model"):
        inner_model(SimpleNamespace())
    with pytest.raises(ValueError, match=r"weights are torch.float64"):
        inner_model(llama().double())
    with pytest.raises(ValueError, match="needs full attention in every layer"):
        scored(llama(layer_types=["full_attention", "sliding_attention"], sliding_window=8))
