"""Exports in the hands of other programs: plain transformers reads and generates what the run does."""

import itertools
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
from tokenizers.decoders import ByteLevel
from tokenizers.normalizers import NFC
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    PreTrainedConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Config,
)
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from squelch.actors.messages import GenerationRequest
from squelch.actors.play.codec import ChatCodec
from squelch.actors.pretrained.gguf_file import converted
from squelch.actors.rollout.engine_args import engine_environment
from squelch.actors.rollout.worker import Engine
from squelch.envs.config import EnvironmentConfig
from squelch.kit.models.model_folder import check_model_folder
from squelch.kit.pictures.geometry import vision_of
from squelch.kit.text.chat_template import reads_as_written
from squelch.learner.batching import Row, collate
from squelch.learner.checkpoint import export as exporting
from squelch.learner.checkpoint.export import export
from squelch.learner.publish import published
from squelch.learner.tensors import inputs_of
from squelch.learner.trainer import Trainer
from squelch.learner.warmup import tiny, tiny_model
from squelch.learner.warmup.demonstrations import transcripts
from squelch.learner.warmup.tiny import build_tiny
from tests.actors.pretrained.made_up import write_gguf
from tests.actors.rollout import vllm_support
from tests.kit.text.made import CHATML, CHATML_TOKENS
from tests.learner.models import make_config
from tests.learner.warmup.small import LAKE, SMALL
from tests.seeing import make_seeing_model

pytestmark = pytest.mark.usefixtures("alone")
KINDS = {"words": ("FrozenLake", None), "bytes": ("MetaMathQA", None), "adapters": ("FrozenLake", {"rank": 2})}
MESSAGES = [{"role": "system", "content": "_ P\nG O"}, {"role": "user", "content": "reward 0.0\nactions left 10"}]


def row(ids: np.ndarray, first: int) -> Row:
    """A row in which the tokens from `first` on were sampled."""
    sampled, none = np.arange(first, len(ids)), np.zeros(len(ids) - first, np.float32)
    return Row("group", 0, ids[:-1], sampled - 1, ids[sampled], none, 0.0, versions=np.zeros(len(none), np.int64))


def assert_plain_transformers_does_what_the_run_does(
    base: Path, folder: Path, texts: list[str], lora: dict | None = None
) -> None:
    """Exports the policy in `base` to `folder`, where plain transformers reads the texts and generates as the run."""
    trainer, codec = Trainer(base, make_config(lora=lora, token_budget=4096)), ChatCodec(base)
    trainer.export(folder)
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
    inputs = inputs_of(collate([row(found.sequences[0].numpy(), ids.shape[1])]), trainer.device)
    [own] = trainer._scores(trainer.policy, [inputs])
    assert own.tolist() == pytest.approx(scores, abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_plain_transformers_reads_and_generates_what_the_run_does(kind: str, tmp_path: Path) -> None:
    name, lora = KINDS[kind]
    environment, base = EnvironmentConfig(name=name), tmp_path / "base"
    base.mkdir()
    model = tiny_model.new_model(tiny.write_tokenizer(base, environment, 0, SMALL), SMALL, 0)
    tiny_model.write_configs(model, base)
    model.save_pretrained(base)
    texts = [text for one in itertools.islice(transcripts(environment, SMALL.quality, 5), 20) for text in one.texts()]
    assert_plain_transformers_does_what_the_run_does(base, tmp_path / "hf", texts, lora)


TEXTS = ["It's 12 o'clock, said 345 users:\n\n  x <= 6 7 8", "é Ü 漢 1 2 3 12 345", "the goal  is up\n\nend "]
QWENS = pre_tokenizers.Sequence(
    [pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
)
SMALLEST = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
SOURCES = {
    "Qwen": (Qwen2Config, "Qwen2Tokenizer", QWENS),
    "Qwen with another tokenizer": (Qwen2Config, "LlamaTokenizerFast", pre_tokenizers.ByteLevel(False)),
    "Llama": (LlamaConfig, "PreTrainedTokenizerFast", pre_tokenizers.ByteLevel(False)),
}


def write_pretrained(folder: Path, source: str) -> None:
    """A random model with a byte-pair tokenizer, as its publisher would have left it."""
    kind, class_name, rules = SOURCES[source]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder = NFC(), rules, ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        TEXTS * 9, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer.add_special_tokens(list(CHATML_TOKENS))
    torch.manual_seed(3)
    rows = tokenizer.get_vocab_size()
    AutoModelForCausalLM.from_config(kind(vocab_size=rows, **SMALLEST)).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"tokenizer_class": class_name, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    (folder / "chat_template.jinja").write_text(CHATML)


@pytest.mark.parametrize("source", SOURCES)
def test_the_export_of_a_pretrained_model_is_read_as_the_run_reads_it(source: str, tmp_path: Path) -> None:
    write_pretrained(tmp_path / "base", source)
    assert_plain_transformers_does_what_the_run_does(tmp_path / "base", tmp_path / "hf", TEXTS)
    settings = [json.loads((tmp_path / one / "tokenizer_config.json").read_text()) for one in ("base", "hf")]
    assert (settings[0] == settings[1]) == (source != "Qwen with another tokenizer"), "changed only where it must be"


@pytest.mark.slow
def test_the_export_of_a_converted_gguf_file_is_read_as_the_run_reads_it(tmp_path: Path) -> None:
    base = converted(write_gguf(tmp_path / "made-up.Q4_1.gguf"), tmp_path / "cache", lambda _: None)
    assert_plain_transformers_does_what_the_run_does(base, tmp_path / "hf", TEXTS)


def test_the_entry_by_which_a_tokenizer_is_read_as_written_is_still_needed(tmp_path: Path) -> None:
    tiny.write_tokenizer(tmp_path, LAKE, 0, SMALL)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    assert reads_as_written(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    assert settings.pop("trust_remote_code") is True
    path.write_text(json.dumps(settings))
    assert not reads_as_written(tmp_path)


PLAIN = """
import json, sys
from vllm import LLM, SamplingParams
llm = LLM(sys.argv[1], dtype="float32", enforce_eager=True, max_model_len=256, max_num_seqs=4,
          kv_cache_memory_bytes=2**26, disable_log_stats=True)
(found,) = llm.generate([sys.argv[2]], SamplingParams(temperature=0, max_tokens=12))
json.dump([found.prompt_token_ids, list(found.outputs[0].token_ids), found.outputs[0].text], open(sys.argv[3], "w"))
"""


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(400)
def test_plain_vllm_generates_what_the_runs_engine_and_plain_transformers_do(tmp_path: Path) -> None:
    wide = SMALL.model_copy(update={"width": 64})  # vLLM's attention on a CPU takes heads of 32 and more
    build_tiny(tmp_path / "base", LAKE, seed=3, recipe=wide)
    folder, out = tmp_path / "hf", tmp_path / "found.json"
    Trainer(tmp_path / "base", make_config()).export(folder)
    reader, codec = AutoTokenizer.from_pretrained(folder), ChatCodec(folder)
    prompt = reader.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=False) + "<think>"
    settings = vllm_support.CONFIG
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, folder, prompt, out],
        env=os.environ | engine_environment(settings) | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},  # one import of vLLM
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-9000:]
    ids, sampled, text = json.loads(out.read_text())
    assert ids == codec.first_turn(MESSAGES).tolist()

    loop, engine = vllm_support.Loop(), Engine("rollout-test", str(folder), settings, codec.stop_ids)
    loop.run(engine.start())
    request = GenerationRequest("one", codec.first_turn(MESSAGES), 12, 0.0, 1)
    own = loop.run(vllm_support.sample(engine, [request]))["one"].token_ids
    loop.run(engine.stop())
    loop.close()
    plain = AutoModelForCausalLM.from_pretrained(folder).generate(
        torch.tensor([ids]), max_new_tokens=12, do_sample=False
    )
    assert sampled == own.tolist() == plain[0, len(ids) :].tolist()
    assert text == codec.text(own) == reader.decode(own, skip_special_tokens=True)


def test_plain_transformers_and_the_engine_read_a_model_with_a_tower_as_it_was(tmp_path: Path) -> None:
    base, folder = make_seeing_model(tmp_path / "base"), tmp_path / "export"
    Trainer(base, make_config(token_budget=4096)).export(folder)
    assert vision_of(folder) == replace(vision_of(base), folder=str(folder))
    own, found = (Qwen2_5_VLForConditionalGeneration.from_pretrained(one).state_dict() for one in (base, folder))
    assert own.keys() == found.keys() and all(torch.equal(own[name], found[name]) for name in own)


@pytest.mark.parametrize("file_bytes", [None, 20_000])
def test_the_export_of_a_mixture_holds_each_expert_as_published_folders_do(
    tmp_path: Path, file_bytes: int | None
) -> None:
    vllm_support.make_mixture("mixtral", 0).save_pretrained(tmp_path / "base")
    trainer = Trainer(tmp_path / "base", make_config())
    export(tmp_path / "export", trainer.policy, tmp_path / "base", file_bytes)
    assert len({path.stat().st_mode for path in (tmp_path / "export").iterdir()}) == 1, "as the user's umask says"
    found = {name: own for path in (tmp_path / "export").glob("*.safetensors") for name, own in load_file(path).items()}
    wanted = load_file(tmp_path / "base" / "model.safetensors")
    assert found.keys() == wanted.keys() and all(found[name].equal(wanted[name]) for name in wanted)
    check_model_folder(tmp_path / "export")


def test_a_weight_that_cannot_be_converted_fails_the_export_by_its_name_once_all_are_gathered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm_support.make_mixture("mixtral", 0).save_pretrained(tmp_path / "base")
    policy, gathered = Trainer(tmp_path / "base", make_config()).policy, []
    convert, gather = exporting.as_published, exporting.gathered

    def refuses(config: Any, weights: list[tuple[str, torch.Tensor]]) -> Any:
        if weights[0][0] == "model.norm.weight":
            raise RuntimeError("sizes differ")
        return convert(config, weights)

    def noted(*arguments: Any) -> Any:
        for name, tensor in gather(*arguments):
            gathered.append(name)
            yield name, tensor

    monkeypatch.setattr(exporting, "as_published", refuses)
    monkeypatch.setattr(exporting, "gathered", noted)
    with pytest.raises(OSError, match=r"model\.norm\.weight cannot be written .*sizes differ"):
        export(tmp_path / "export", policy, tmp_path / "base")
    assert gathered == list(published(policy)), "the other ranks are in these collectives"


def test_an_export_copies_only_views_that_share_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "as_published", lambda config, weights: given)
    files, whole, two = exporting._Files(tmp_path, {"w": "one"}, True), torch.ones(4), torch.ones(2, 3, 5)
    given = [("whole", whole.view(4)), ("first", two[0].T), ("second", two[1])]
    files.add("w", whole, PreTrainedConfig())
    files.finish()
    files.add("w", whole, PreTrainedConfig())
    assert files.open["whole"].data_ptr() == whole.data_ptr()
    assert {name: own.shape for name, own in load_file(tmp_path / "one").items()} == {n: own.shape for n, own in given}
