import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, MixtralConfig, PreTrainedConfig, Qwen2Config, Qwen3MoeConfig

from squelch.actors.messages import StepTerms
from squelch.cluster.config import load
from squelch.kit.packed import block_attention
from squelch.kit.packed.attention import NAME
from squelch.kit.packed.layout import Layout
from squelch.kit.packed.packing import pack
from squelch.learner import memory
from squelch.learner import rank as rank_module
from squelch.learner.config import MAX_GRADIENTS, LearnerConfig
from squelch.learner.kernels.linear import use_fast_products
from squelch.learner.model_shapes import SHAPES, published
from squelch.learner.policy.model import decoder_layers, hidden_states
from squelch.learner.rank import LearnerRank
from tests.learner import memory_worker as learner_memory_worker

pytestmark = pytest.mark.slow

PARAMETERS = {
    "Qwen2.5-0.5B": 494_032_768,
    "Qwen2.5-1.5B": 1_543_714_304,
    "Qwen2.5-3B": 3_085_938_688,
    "Qwen2.5-3B-Instruct": 3_085_938_688,
    "Qwen2.5-7B": 7_615_616_512,
    "Qwen2.5-VL-3B-Instruct": 3_754_622_976,
    "Llama-3.2-3B": 3_212_749_824,
    "SmolLM2-135M": 134_515_008,
}


def put_gpus(monkeypatch: pytest.MonkeyPatch, *gib: float) -> None:
    """The process sees GPUs of these sizes; whoever asks for free memory would create a context."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(gib))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gib))
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda gpu: SimpleNamespace(total_memory=gib[gpu] * memory.GIB)
    )
    monkeypatch.setattr(torch.cuda, "mem_get_info", None)


GPU = {"num_gpus": 1, "dtype": "bfloat16", "token_budget": 16384}


@pytest.mark.parametrize("name", SHAPES)
def test_published_shapes_have_the_published_number_of_parameters(name: str) -> None:
    model = memory.skeleton(published(name))
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[name]
    tower = getattr(model.config, "vision_config", None)
    blocks = model.config.get_text_config().num_hidden_layers + (tower.depth if tower else 0)
    assert len(decoder_layers(model)) == blocks


@pytest.mark.parametrize("recipe", ["qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-3b", "qwen2.5-7b", "llama-3.2-3b"])
def test_a_recipes_learner_fits_a_gpu_of_80_gib(recipe: str) -> None:
    run = load(recipe)
    assert run.model.path is not None
    needed = memory.estimate(
        published(run.model.path.rsplit("/", 1)[-1].removesuffix("-Instruct")), run.learner, run.learner.ranks
    )
    assert needed.total < 80 * memory.GIB, needed.line()


def test_shards_and_their_sum_follow_the_ranks_and_the_options() -> None:
    config = published("Qwen2.5-3B")
    one, four = (memory.estimate(config, LearnerConfig(**GPU), ranks) for ranks in (1, 4))
    assert one.state == 16 * PARAMETERS["Qwen2.5-3B"] and four.state * 4 == one.state
    assert four.activations == one.activations and four.gathered < one.gathered
    less = {
        "state": {"cpu_offload": True},
        "activations": {"activation_checkpointing": True},
        "logits": {"token_budget": 2048},
    }
    for part, change in less.items():
        assert vars(memory.estimate(config, LearnerConfig(**{**GPU, **change}), 4))[part] < vars(four)[part], part
    assert memory.estimate(config, LearnerConfig(**GPU, lora={"rank": 8}), 4).state < 0.3 * four.state
    with_reference = LearnerConfig(**GPU, objective={"kl": {"coefficient": 0.01}})
    assert memory.estimate(config, with_reference, 1).state == 20 * PARAMETERS["Qwen2.5-3B"]


def test_the_estimate_is_what_a_step_takes() -> None:
    # Policy and critic with moments and copies of both; a model whose weights are nearly all of it, so that a copy that
    # nobody counted would show.
    found = learner_memory_worker.measure(
        budget=256, groups=1, prompt=10, answer=10, vocabulary=40_000, learner={"algorithm": "ppo"}
    )
    assert 0.85 < found["estimate_mib"] / found["whole_mib"] < 1.15, found


def test_copies_to_go_back_to_are_counted_where_there_are_any() -> None:
    config = published("Qwen2.5-0.5B")
    size = PARAMETERS["Qwen2.5-0.5B"]
    assert memory.estimate(config, LearnerConfig(), 2).snapshot == 12 * size // 2
    assert memory.estimate(config, LearnerConfig(algorithm="ppo"), 1).snapshot == 24 * size
    for learner in (LearnerConfig(minibatches=1), LearnerConfig(**GPU)):
        assert memory.estimate(config, learner, 1).snapshot == 0
    adapters = memory.estimate(config, LearnerConfig(algorithm="ppo", lora={"rank": 8}), 1)
    assert 12 * size < adapters.snapshot < 12.2 * size and adapters.state > 20 * size


def test_taking_gradients_apart_is_counted_and_the_first_thing_to_go() -> None:
    config = published("Qwen2.5-3B")
    learner = LearnerConfig(**GPU, activation_checkpointing=True, max_memory_gib=40)
    with_it, without = (memory.estimate(config, learner, 4, held) for held in (MAX_GRADIENTS, 0))
    assert with_it.total - without.total == with_it.decomposition == 44 * PARAMETERS["Qwen2.5-3B"] // 4
    assert "gradients.every" not in memory.check(config, learner, 4)
    with pytest.raises(ValueError, match=r"decomposition 31\.\d+, .*, has 40\.0: set gradients\.every=0"):
        memory.check(config, learner, 4, MAX_GRADIENTS)


def test_what_cannot_fit_is_refused_with_what_would_make_it_fit() -> None:
    config = published("Qwen2.5-3B")
    small = LearnerConfig(**GPU, max_memory_gib=24)
    with pytest.raises(ValueError, match=r"needs 1\d\d\.\d+ GiB per rank .*, has 24\.0: set (.*)$") as refused:
        memory.check(config, small, 2)
    advice = dict(word.split("=") for word in str(refused.value).rsplit("set ", 1)[1].split())
    mended = LearnerConfig.model_validate(
        {**small.model_dump(), **{key.removeprefix("learner."): json.loads(value) for key, value in advice.items()}}
    )
    assert memory.check(config, mended, max(2, mended.ranks)).startswith("learner needs")


@pytest.mark.parametrize(
    ("gpus", "settings", "gib"),
    [
        ((80,), {"num_gpus": 1}, 80),
        ((80,), {"num_gpus": 0.4}, 32),
        ((80, 80), {"num_gpus": 2}, 80),
        ((80, 24), {"num_gpus": 1}, 24),
        ((), {"num_gpus": 1}, None),
        ((), {"num_gpus": 1, "max_memory_gib": 12}, 12),
        ((80,), {"num_gpus": 0.5, "max_memory_gib": 12}, 12),
    ],
)
def test_a_rank_has_its_share_of_the_smallest_gpu_and_no_context_is_made_to_know_it(
    monkeypatch: pytest.MonkeyPatch, gpus: tuple[float, ...], settings: dict[str, float], gib: float | None
) -> None:
    put_gpus(monkeypatch, *gpus)
    assert memory.available(LearnerConfig.model_validate(settings)) == (None if gib is None else gib * memory.GIB)


@pytest.mark.parametrize(
    ("own", "outside", "free", "message"),
    [
        (
            20,
            0,
            2,
            r"holds 20\.0 GiB of its share of 40\.0, everything else, .*58\.0, and 2\.0 of 80\.0 .*end them",
        ),
        (
            39,
            2,
            1,
            r"holds 39\.0 GiB of its share of 40\.0, everything else, .*40\.0, and 1\.0 of 80\.0 .*lower learner\.to",
        ),
    ],
)
def test_a_gpu_that_fills_in_mid_run_is_named_with_who_holds_how_much(
    monkeypatch: pytest.MonkeyPatch, own: int, outside: int, free: int, message: str
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB")

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free * memory.GIB, 80 * memory.GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: (own - outside) * memory.GIB)
    monkeypatch.setattr(rank_module, "decompose", full)
    rank = LearnerRank(0, "", LearnerConfig(num_gpus=0.5), 0, 1.0)
    monkeypatch.setattr(rank, "trainer", SimpleNamespace(train_step=full, publish=full), raising=False)
    monkeypatch.setattr(rank, "_fetch", lambda *_: [])
    if outside:
        copies = SimpleNamespace(gpu_bytes=outside * memory.GIB, free=lambda: None)
        monkeypatch.setattr(rank, "_copies", copies)
    for call in (
        lambda: rank.train_step(1, [], [], StepTerms()),
        lambda: rank.decompose([], []),
        lambda: rank.publish(1, "bfloat16"),
    ):
        with pytest.raises(RuntimeError, match=message + r".*Tried to allocate 3\.00 GiB"):
            call()


def test_a_rank_holds_whole_experts() -> None:
    """Of 8 experts on 16 ranks, half of the ranks hold one, and the others none."""
    shape = {"vocab_size": 64, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4}
    config = MixtralConfig(**shape, num_hidden_layers=1, intermediate_size=512, num_local_experts=8)
    experts, learner = 8 * 3 * 64 * 512, LearnerConfig(**GPU)
    others = sum(p.numel() for p in memory.skeleton(config).parameters()) - experts
    needed = memory.estimate(config, learner, 16).state
    assert 16 * (experts // 8 + others // 16) <= needed < 16 * (experts // 8 + others // 8)
    assert memory.estimate(config, learner, 8).state == 16 * (experts + others) // 8


def test_the_host_memory_of_ranks_on_gpus_is_counted_and_what_cannot_fit_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config, size = published("Qwen2.5-7B"), PARAMETERS["Qwen2.5-7B"]
    learner = LearnerConfig(**GPU, minibatches=4, activation_checkpointing=True)
    needed, one = memory.host_estimate(config, learner, 4), LearnerConfig(**GPU, minibatches=1)
    assert needed is not None and needed.snapshot == 12 * size // 4 and 4 * memory.GIB < needed.staging < 5 * memory.GIB
    offloaded, plain = (
        memory.host_estimate(config, one.model_copy(update={"cpu_offload": on}), 4) for on in (True, False)
    )
    assert offloaded is not None and plain is not None
    assert (offloaded.state, offloaded.snapshot, plain.state) == (16 * size // 4, 0, 0)
    assert plain.staging == 12 * size // 4 and offloaded.staging < 5 * memory.GIB, "a resume reads weights and moments"
    assert memory.host_estimate(config, LearnerConfig(), 4) is None
    put_gpus(monkeypatch, 80)
    monkeypatch.setattr(memory, "_free", lambda: 64 * memory.GIB)
    assert memory.check(config, learner, 4, sharing=2).startswith("learner needs")
    with pytest.raises(ValueError, match=r"the 4 ranks of this host have 64\.0 together: set learner\.minibatches=1"):
        memory.check(config, learner, 4, sharing=4)


def kept_per_token(config: PreTrainedConfig) -> float:
    """Bytes that the layers keep of each token of one row."""
    model = AutoModelForCausalLM.from_config(config).eval()
    model.set_attn_implementation(NAME)
    use_fast_products(model)
    forest = pack([np.arange(150) % 100])
    ids = torch.from_numpy(forest.token_ids)[None]
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def keep(x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        hidden_states(model, ids, Layout.of(forest, ids.device))
    return sum(kept.values()) / forest.num_tokens


def test_estimated_activations_are_those_that_layers_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Qwen2Config(
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=100,
    )
    assert kept_per_token(config) < memory._per_token(config, LearnerConfig(), 4)
    monkeypatch.setattr(block_attention, "KEPT_KEYS", 0)  # how many weights are kept depends on the rows
    measured = kept_per_token(config)
    assert 0.95 * measured < memory._per_token(config, LearnerConfig(), 4) < 1.15 * measured


@pytest.mark.parametrize("kind", ["qwen3_moe", "mixtral"])
def test_estimated_activations_of_a_mixture_are_those_of_the_experts_that_a_token_is_fed_to(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    shape = {"vocab_size": 100, "hidden_size": 128, "num_hidden_layers": 3, "head_dim": 32}
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 256}
    monkeypatch.setattr(block_attention, "KEPT_KEYS", 0)
    if kind == "mixtral":
        config: PreTrainedConfig = MixtralConfig(**shape)
    else:
        config = Qwen3MoeConfig(**shape, moe_intermediate_size=64, num_experts=16)
    measured = kept_per_token(config)
    assert 0.95 * measured < memory._per_token(config, LearnerConfig(), 4) < 1.2 * measured
