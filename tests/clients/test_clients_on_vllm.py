"""The same clients on a real engine: whatever it samples decodes to what they saw, and the learner's log-probabilities
are the engine's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Qwen2ForCausalLM

from benchmarks.common import small_qwen2
from squelch.actors.config import RolloutConfig
from squelch.actors.endpoint.session import Call
from squelch.actors.messages import Completion, GenerationRequest
from squelch.actors.play.codec import ChatCodec
from squelch.actors.play.transcript import joined
from squelch.actors.rollout.worker import Engine
from squelch.kit.records.records import Trajectory
from squelch.learner.batching import collate, to_rows
from squelch.learner.tensors import inputs_of
from squelch.learner.trainer import Trainer
from tests.actors.rollout import vllm_support
from tests.clients.support import MAX_MODEL_LEN, TEMPLATE, Played, assert_decodes, interpreter_of, play
from tests.kit.text.made import chatml_bpe, save_folder
from tests.learner.conftest import alone  # noqa: F401  # a fixture
from tests.learner.models import make_config

pytestmark = [pytest.mark.ray, pytest.mark.slow]
SPOKEN = [
    f'so <tool_call>\n{{"name": "add", "arguments": {{"a": {a}, "b": {b}}}}}\n</tool_call> so'
    for a, b in ((2, 3), (5, 4), (1, 1))
]
"""Ordinary tokens whose text is a whole call, so that a random policy makes calls."""
CONSTANT, CALL_BIAS, END_BIAS = 20.0, 0.8, 1.1
CONFIG = RolloutConfig(
    max_model_len=MAX_MODEL_LEN, max_num_seqs=8, kv_cache_gib=0.2, num_threads=1, update_timeout_s=60.0
)


def write_policy(folder: Path) -> Path:
    """A random Qwen2 that often calls the tool and often ends its turn."""
    tokenizer = chatml_bpe()
    tokenizer.add_tokens(SPOKEN)
    torch.manual_seed(3)
    ends = [tokenizer.token_to_id("<|im_end|>")]
    vocabulary = tokenizer.get_vocab_size(with_added_tokens=True)
    config = small_qwen2(
        **{"vocabulary": vocabulary, "width": 64, "layers": 2, "hidden": 96, "heads": 2},
        tie_word_embeddings=False,
        max_position_embeddings=MAX_MODEL_LEN,
        initializer_range=0.2,
        eos_token_id=ends[0],
        bos_token_id=None,
    )
    policy = Qwen2ForCausalLM(config)
    with torch.no_grad():  # one constant feature of every token, which biases some logits
        policy.model.embed_tokens.weight[:, 0] = CONSTANT
        for layer in policy.model.layers:
            layer.self_attn.o_proj.weight[0] = layer.mlp.down_proj.weight[0] = 0.0
        policy.lm_head.weight[:, 0] = 0.0
        policy.lm_head.weight[ends, 0] = END_BIAS
        policy.lm_head.weight[[tokenizer.token_to_id(text) for text in SPOKEN], 0] = CALL_BIAS
    save_folder(folder, tokenizer, TEMPLATE)
    policy.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    interpreter_of("clients")
    return write_policy(tmp_path_factory.mktemp("policy") / "model")


@pytest.fixture(scope="module")
def loop() -> Iterator[vllm_support.Loop]:
    loop = vllm_support.Loop()
    yield loop
    loop.close()


@pytest.fixture(scope="module")
def engine(loop: vllm_support.Loop, folder: Path) -> Iterator[Engine]:
    engine = Engine("clients-test", str(folder), CONFIG, ChatCodec(folder).stop_ids)
    loop.run(engine.start())
    yield engine
    loop.run(engine.stop())


def mismatch(trainer: Trainer, played: Played) -> float:
    """Greatest difference of a sampled token's log-probability between learner and engine, nats."""
    assert played.recorded is not None
    whole = joined(played.recorded.segments, played.recorded.causes)
    trajectory = Trajectory(0, success=False, truncated=False, **vars(whole))
    rows = to_rows([("000001-000", [trajectory])], trainer.config.objective)
    own = [trainer._scores(trainer.policy, [inputs_of(collate([row]), trainer.device)])[0].numpy() for row in rows]
    return float(np.abs(np.concatenate(own) - trajectory.log_probs[trajectory.loss_mask]).max())


@pytest.mark.usefixtures("alone")
def test_whatever_is_sampled_decodes_to_what_clients_saw_and_has_the_learners_log_probs(loop, folder, engine) -> None:
    one, trainer = ChatCodec(folder), Trainer(folder, make_config())
    calls = 0

    async def sample(call: Call) -> Completion:
        request = GenerationRequest(f"call-{call.number}", call.prompt_ids, call.max_tokens, 1.0, call.seed, call.stop)
        return (await vllm_support.sample(engine, [request]))[request.request_id]

    for program in ("openai", "responses", "anthropic", "smolagents"):
        played = loop.run(play(one, program, 4, sample))
        assert_decodes(one, played)
        calls += sum(len(reply["calls"]) for reply in played.replies)
        assert mismatch(trainer, played) <= 1e-5, program
    assert calls >= 3, "the clients are to play tools"
