"""Exports in the hands of other programs: plain transformers reads and generates what the run does."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from squelch.actors.play.codec import ChatCodec
from squelch.envs.config import EnvironmentConfig
from squelch.learner.batching import Row, collate
from squelch.learner.tensors import inputs_of
from squelch.learner.trainer import Trainer
from squelch.learner.warmup import tiny, tiny_model
from squelch.learner.warmup.demonstrations import transcripts
from tests.learner.models import make_config
from tests.learner.warmup.small import SMALL

pytestmark = pytest.mark.usefixtures("alone")
KINDS = {"words": ("FrozenLake", None), "bytes": ("MetaMathQA", None), "adapters": ("FrozenLake", {"rank": 2})}
MESSAGES = [{"role": "system", "content": "_ P\nG O"}, {"role": "user", "content": "reward 0.0\nactions left 10"}]


def row(ids: np.ndarray, first: int) -> Row:
    """A row in which the tokens from `first` on were sampled."""
    sampled, none = np.arange(first, len(ids)), np.zeros(len(ids) - first, np.float32)
    return Row("group", 0, ids[:-1], sampled - 1, ids[sampled], none, 0.0, versions=np.zeros(len(none), np.int64))


@pytest.mark.parametrize("kind", KINDS)
def test_plain_transformers_reads_and_generates_what_the_run_does(kind: str, tmp_path: Path) -> None:
    name, lora = KINDS[kind]
    environment, base, folder = EnvironmentConfig(name=name), tmp_path / "base", tmp_path / "hf"
    base.mkdir()
    model = tiny_model.new_model(tiny.write_tokenizer(base, environment, 0, SMALL), SMALL, 0)
    tiny_model.write_configs(model, base)
    model.save_pretrained(base)
    trainer, codec = Trainer(base, make_config(lora=lora, token_budget=4096)), ChatCodec(base)
    trainer.export(folder)

    texts = [text for one in itertools.islice(transcripts(environment, SMALL.quality, 5), 20) for text in one.texts()]
    reader = AutoTokenizer.from_pretrained(folder)
    assert [reader.encode(text, add_special_tokens=False) for text in texts] == [
        codec.encode(t).tolist() for t in texts
    ]
    assert [reader.decode(codec.encode(text)) for text in texts] == texts
    prompt = reader.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=False) + "<think>"
    ids = torch.tensor([reader.encode(prompt, add_special_tokens=False)])
    assert ids[0].tolist() == codec.first_turn(MESSAGES).tolist()

    plain = AutoModelForCausalLM.from_pretrained(folder)
    found = plain.generate(ids, max_new_tokens=8, do_sample=False, output_scores=True, return_dict_in_generate=True)
    scores = [step.log_softmax(-1).max().item() for step in found.scores]
    own = trainer._score(
        trainer.policy, inputs_of(collate([row(found.sequences[0].numpy(), ids.shape[1])]), trainer.device)
    )
    assert own.tolist() == pytest.approx(scores, abs=1e-4)
